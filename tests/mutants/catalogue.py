"""The mutants of tests/mutants/*.toml, and the rows of docs/requirements.md that they belong to.

Both the runner (run.py) and the cheap check in tests/docs read them here.
"""

import pathlib
import re
import tomllib

REQUIREMENTS = "docs/requirements.md"
ROW = re.compile(r"^\| ((?:S\d{3}|FR|NFR|AC|UT|IT)-\S+) \| (.*?) \| (.*?) \| (.*) \|$", re.M)
KEYS = {"rows", "what", "file", "old", "new"}


class Row:
    """One requirement that is done: its number, what it requires, and the tests it cites."""

    def __init__(self, number, text, proof):
        self.number, self.text = number, text
        self.tests = re.findall(r"`([^`]+)`", proof)


class Edit:
    """One substitution in one file."""

    def __init__(self, entry):
        self.file, self.old, self.new = entry["file"], entry["old"], entry["new"]

    def complaint(self, root):
        """None if `old` stands in the file exactly once."""
        path = pathlib.Path(root) / self.file
        if not path.is_file():
            return f"there is no file {self.file}"
        found = path.read_text(encoding="utf-8").count(self.old)
        return None if found == 1 else f"{self.file} has {found} times: {self.old.strip()}"


class Mutant:
    """A small change that breaks the requirement of every row it names; where a rule is guarded twice
    it takes more than one substitution."""

    def __init__(self, entry, source):
        self.rows, self.what, self.source = entry["rows"], entry["what"], source
        self.edits = [Edit(edit) for edit in [entry, *entry.get("also", [])]]
        self.file = self.edits[0].file

    def complaints(self, root):
        return [f"{self.source}: {complaint}" for edit in self.edits
                if (complaint := edit.complaint(root))]


class Catalogue:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.rows, self.mutants, self.exempt, self.complaints = {}, [], {}, []
        text = (self.root / REQUIREMENTS).read_text(encoding="utf-8")
        for number, what, state, proof in ROW.findall(text):
            if state.split(":")[0] == "done":
                self.rows[number] = Row(number, what, proof)
        for path in sorted((self.root / "tests" / "mutants").glob("*.toml")):
            self.read(path)
        self.compare()

    def read(self, path):
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as error:
            self.complaints.append(f"{path.name}: {error}")
            return
        for number, entry in enumerate(data.get("mutant", []), 1):
            source = f"{path.name}, mutant {number} ({', '.join(entry.get('rows', []))})"
            if set(entry) - {"also"} != KEYS or not entry["rows"]:
                self.complaints.append(f"{source}: has {', '.join(sorted(entry))}; "
                                       f"needed are {', '.join(sorted(KEYS))}")
            elif entry["old"] == entry["new"]:
                self.complaints.append(f"{source}: changes nothing")
            else:
                self.mutants.append(Mutant(entry, source))
        for entry in data.get("exempt", []):
            self.exempt.update({row: entry["reason"] for row in entry["rows"]})

    def compare(self):
        named = {row for mutant in self.mutants for row in mutant.rows}
        self.complaints += [f"{row}: has neither a mutant nor a reason why there is none"
                            for row in self.rows if row not in named and row not in self.exempt]
        self.complaints += [f"{row}: has a mutant, but is no requirement that is done"
                            for row in sorted((named | set(self.exempt)) - set(self.rows))]
        self.complaints += [f"{row}: has a mutant and a reason why there is none"
                            for row in sorted(named & set(self.exempt))]
        self.complaints += [complaint for mutant in self.mutants
                            for complaint in mutant.complaints(self.root)]
