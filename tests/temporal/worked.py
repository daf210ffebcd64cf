"""What the workers of these tests are told: an app with nothing but the driver whose settings they share."""

from __future__ import annotations

import os

from sapwood import App
from sapwood.drivers.temporal import TemporalDriver

TOLD = os.environ

app = App(
    agents=[],
    driver=TemporalDriver(
        TOLD["TEMPORAL_TARGET"],
        token=TOLD["TEMPORAL_TOKEN"],
        queue=TOLD["TEMPORAL_QUEUE"],
        patience=float(TOLD["TEMPORAL_PATIENCE"]),
    ),
)
