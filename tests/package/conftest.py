"""Makes the generated library importable."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "generated" / "qla_ops" / "src"
sys.path.insert(0, str(SOURCE))
