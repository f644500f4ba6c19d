"""``stats`` once as a user would start it, under either library."""

import json

from launching import refused


def test_smoke(cli, folder):
    (folder / "a.csv").write_text("x,y,s\n1,0.1,p\n2,0.2,q\n")
    (folder / "b.csv").write_text("s,y,x\nr,0.3,4\n")
    result = cli(3, "stats", "*.csv", "--json", "out.json", "--moments", "--covariance", "--histogram", 4)
    assert result.status == 0 and not result.own, result
    assert result.out.startswith("3 rows in 2 files, 3 ranks\n\ncolumn"), result
    columns = json.loads((folder / "out.json").read_text())["columns"]
    assert (columns["x"]["sum"], columns["y"]["sum"], columns["s"]["max"]) == (7, 0.6, "r")
    refused(cli(3, "stats", "a.csv", "absent.csv", "--json", "out.json"), 1, "absent.csv")
    refused(cli(2, "stats", "a.csv", "--output", "out.txt"), 2, ".csv or .parquet")
