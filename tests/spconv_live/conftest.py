"""These tests run where spconv is installed (see requirements.txt); elsewhere they are not collected."""

import importlib.util
import os

# spconv's CPU build is racy with more than one thread. Its library reads this when it is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

if importlib.util.find_spec("spconv") is None:
    collect_ignore = ["test_fuzz.py", "test_live.py"]
