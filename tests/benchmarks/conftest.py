import sys
from pathlib import Path

# The scripts find their shared modules beside them.
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
