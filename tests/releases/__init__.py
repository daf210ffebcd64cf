"""What runs in the environment of one release when `scripts/try_releases.py` tries several."""
