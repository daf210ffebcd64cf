"""The bulletin, driven by Temporal. README.md explains how to start it."""

import os

from sapwood import App
from sapwood.drivers.temporal import TemporalDriver

from bulletin import Editor

# --8<-- [start:app]
options = {}
if keys := os.environ.get("ENCRYPTION_KEYS"):  # one key, or several, space-separated
    from encryption import encrypting_converter

    options["data_converter"] = encrypting_converter(keys.split())

driver = TemporalDriver(
    os.environ.get("TEMPORAL", "127.0.0.1:7233"),
    token=os.environ.get("DRIVER_TOKEN", "for-development"),
    options=options,
)
app = App(agents=[Editor], driver=driver)
# --8<-- [end:app]
