"""The bulletin, driven by Temporal. How it is started is told in README.md."""

import os

from sapwood import App
from sapwood.drivers.temporal import TemporalDriver

from bulletin import Editor

# --8<-- [start:app]
options = {}
if keys := os.environ.get("SEAL_KEYS"):  # one key, or several with spaces between them
    from sealing import sealed

    options["data_converter"] = sealed(keys.split())

driver = TemporalDriver(
    os.environ.get("TEMPORAL", "127.0.0.1:7233"),
    token=os.environ.get("DRIVER_TOKEN", "only-for-trying"),
    options=options,
)
app = App(agents=[Editor], driver=driver)
# --8<-- [end:app]
