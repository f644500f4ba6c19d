"""Sum up the reports of a test run: every failure, every reason to skip, and one closing line."""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def main(folder: Path) -> int:
    """Read NAME.status and NAME.xml of each step in `folder`; return the exit status."""
    count: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    failures = []
    for path in sorted(folder.glob("*.status")):
        status = int(path.read_text())
        failed = 0
        report = path.with_suffix(".xml")
        if report.exists():
            for case in ElementTree.parse(report).iter("testcase"):
                skip = case.find("skipped")
                if case.find("failure") is not None or case.find("error") is not None:
                    failed += 1
                    failures.append(f"{path.stem}: {case.get('classname')}::{case.get('name')}")
                elif skip is not None:
                    count["skipped"] += 1
                    reasons[skip.get("message", "")] += 1
                else:
                    count["passed"] += 1
        elif status == 0:
            count["passed"] += 1
        if status and not failed:
            failed = 1
            failures.append(f"{path.stem}: ended with status {status}")
        count["failed"] += failed
    for reason, number in reasons.most_common():
        print(f"skipped {number} x: {reason}")
    for failure in failures:
        print(f"FAILED {failure}")
    print(f"{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped")
    return 1 if failures or not count["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
