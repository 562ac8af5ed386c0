"""``python tests/support/transcripts [--update]``: how the lives differ from the golden ones; --update keeps them."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]

from transcripts import golden  # noqa: E402 - neither is installed

now = [golden.played(number) for number in range(golden.LIVES)]
before = golden.read() if golden.FILE.exists() else []
before += [[]] * (golden.LIVES - len(before))
changed = 0
for number, pair in enumerate(zip(before, now, strict=True)):
    lines = list(golden.difference(number, *pair))
    changed += bool(lines)
    print("".join(f"{line}\n" for line in lines), end="")
print(f"{changed} of {golden.LIVES} lives go otherwise")
if "--update" in sys.argv[1:]:
    golden.write(now)
sys.exit(bool(changed) and "--update" not in sys.argv[1:])
