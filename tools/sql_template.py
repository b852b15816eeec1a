"""Values and fragments in SQL: $[name] and $[name(argument, ...)] become text when the SQL is read.

A name is a built-in value of a policy, as in src/rules/policy.def, or a fragment. Fragments are in
FOLDER/fragments.def, each under a line `-- fragment: name(parameter, ...)`; in its text {parameter}
stands for the argument. So a condition that several statements need is written once, and every
statement still has all of its own text, which the planner of the database sees.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parent.parent
POLICY = ROOT / "src" / "rules" / "policy.def"
VALUE = re.compile(r"^BUILTIN\((\w+), (-?\d+)\)", re.M)
HEAD = re.compile(r"-- fragment: (\w+)\(([^)]*)\)")
USE = re.compile(r"\$\[([a-z_]+)(\()?")


class Unknown(Exception):
    """A name that is neither a value nor a fragment, or a wrong number of arguments."""


class Template:
    def __init__(self, folder=None, policy=POLICY):
        self.files = [path for path in (policy, folder and folder / "fragments.def")
                      if path and path.exists()]
        self.values, self.fragments = {}, {}
        for path in self.files:
            text = path.read_text(encoding="utf-8")
            self.values.update(VALUE.findall(text))
            for part in re.split(r"^(?=-- fragment: )", text, flags=re.M)[1:]:
                head, _, body = part.partition("\n")
                name, parameters = HEAD.fullmatch(head).groups()
                # A comment line below the text belongs to the next fragment.
                body = "\n".join(line for line in body.split("\n") if not line.startswith("--"))
                self.fragments[name] = ([p.strip() for p in parameters.split(",")], body.strip())

    def expand(self, text):
        """The text with all values and fragments in it."""
        out, position = [], 0
        while use := USE.search(text, position):
            out.append(text[position:use.start()])
            value, position = self.one(text, use)
            out.append(value)
        return "".join(out) + text[position:]

    def one(self, text, use):
        """What stands for one use, and where that use ends."""
        name = use[1]
        if not use[2]:
            if name not in self.values or text[use.end():use.end() + 1] != "]":
                raise Unknown(f"$[{name}] is no built-in value")
            return self.values[name], use.end() + 1
        arguments, end = split_arguments(text, use.end())
        parameters, body = self.fragments.get(name, (None, ""))
        if parameters is None or len(parameters) != len(arguments) or text[end:end + 1] != "]":
            raise Unknown(f"$[{name}(...)] is no fragment with {len(arguments)} parameters")
        for parameter, argument in zip(parameters, arguments):
            body = body.replace("{" + parameter + "}", argument)
        return self.expand(body), end + 1


def split_arguments(text, start):
    """The arguments that begin at `start`, and where their parenthesis has closed."""
    arguments, depth, begin = [], 0, start
    for position in range(start, len(text)):
        char = text[position]
        if depth == 0 and char in ",)":
            arguments.append(text[begin:position].strip())
            begin = position + 1
            if char == ")":
                return arguments, position + 1
        depth += (char == "(") - (char == ")")
    raise Unknown("a $[...( is never closed")
