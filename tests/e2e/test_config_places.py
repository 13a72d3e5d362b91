"""Absolute paths in a config: a job finds its samples again from any working directory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from support.jobs import Jobs

PLACES = """
def of_file(item, words):
    called(item)
    return Path(words).read_text().split()[item]

def of_folder(item, folder):
    called(item)
    return "".join(sorted(path.read_text() for path in Path(folder).iterdir())).split()[item]

def main():
    data, cwd = Path(sys.argv[1]), sys.argv[2]
    os.chdir(cwd)
    words, folder = data / "lists" / "words.txt", data / "lists"
    told = []
    for function, config in (
        (of_file, {"words": words}),
        (of_file, {"words": str(words)}),
        (of_file, {"words": prepcache.plain(words)}),
        (of_folder, {"folder": prepcache.tree(folder)}),
        (of_folder, {"folder": prepcache.plain(str(folder))}),
    ):
        ds = prepcache.CachedDataset([0, 1, 2], function, config=config, progress=False)
        told.append([list(ds), ds.report().hit, ds.report().why])
    tell(told=told)

main()
"""


def test_no_working_directory_counts(jobs: Jobs, tmp_path: Path) -> None:
    data, other = tmp_path / "data", tmp_path / "other"
    (data / "lists").mkdir(parents=True)
    other.mkdir()
    (data / "lists" / "words.txt").write_text("a b c")
    script = jobs.write(PLACES)
    jobs.run(script, data, data)
    assert jobs.calls()[0] == 5
    jobs.forget()
    for cwd in (other, "/", data / "lists"):
        assert jobs.run(script, data, cwd)["told"] == [[["a", "b", "c"], 3, []]] * 5
    assert jobs.calls() == Counter()

    (data / "lists" / "words.txt").write_text("x y z")
    assert [values for values, _, _ in jobs.run(script, data, other)["told"]] == [["x", "y", "z"]] * 5
    assert jobs.calls()[0] == 5
