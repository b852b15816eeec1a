#!/usr/bin/env python3
"""Write docs/reference/messages.md, the list of every message, from the sources.

    tools/messages.py [ROOT]             compare the page with the sources
    tools/messages.py --update [ROOT]    write the page

The messages come from the sources. The advice comes from docs/reference/messages.toml, which is written by
hand: each key is a message with `…` for whatever varies. Complaints are printed, and the exit code is 1, when

- a log line or a finding has no advice,
- an advice belongs to no message, or
- the page is not what this tool writes.

How a message is found. In C, every function with a printf attribute counts if one of its parameters is `level`
(a log line or a finding), `status`, `saved_errno` or `exit` (a refusal), and so do macros that pass their arguments on
to such a function. In PostgreSQL, every function whose first parameters are `level, message` or `status, message`
counts. Messages that are put together from pieces stand below `[composed]` in the advice file: each of
their pieces must occur in the sources.
"""

import pathlib
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = "docs/reference/messages.md"
ADVICE = "docs/reference/messages.toml"
LIBRARY = ("src/core", "src/rules", "src/store", "src/worker", "src/base")
PROGRAM = ("src/cli",)

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
CONVERSION = re.compile(r"%(?:%|[-+ 0#]*[\d*]*(?:\.[\d*]+)?(?:ll|l|z|h)?[a-zA-Z])")
PRINTF = re.compile(r"(\w+)\(([^;{}()]*?)\.\.\.\s*\)\s*__attribute__\(\(format\(printf,\s*(\d+),\s*(\d+)\)\)\)")
MACRO = re.compile(r"#define (\w+)\(([^)]*\.\.\.)\)((?:[^\n]*\\\n)*[^\n]*)")
LEVELS = {"LH_LOG_ERROR": "error", "LH_LOG_WARN": "warn", "LH_LOG_INFO": "info", "LH_LOG_DEBUG": "debug"}


class Message:
    def __init__(self, kind, text, how, source):
        self.kind, self.text, self.how, self.sources = kind, text, set(how), {source}


# ---------------------------------------------------------------- reading C

def without_comments(text):
    """The text with comments blanked; strings stay."""
    return re.sub(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/',
                  lambda m: m[0] if m[0][0] == '"' else re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def arguments(text, start):
    """The arguments of a call whose opening parenthesis is at `start`, split at the commas between them."""
    depth, found, begin, at = 0, [], start + 1, start
    while at < len(text):
        char = text[at]
        if char in "\"'":
            quote = at
            at += 1
            while at < len(text) and text[at] != char:
                at += 2 if text[at] == "\\" else 1
            if at >= len(text):
                return found
            if char == "'" and at == quote + 1:  # '' in SQL
                pass
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth == 0:
                return found + [text[begin:at].strip()]
        elif char == "," and depth == 1:
            found.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    return found


def literals(argument):
    """Each string of an argument, neighbours joined; `cond ? "a" : "b"` has two."""
    joined = re.sub(r'"\s*PRI[a-zA-Z]\w*\s*"', "d", argument)
    joined = re.sub(r'"\s*PRI[a-zA-Z]\w*', 'd"', joined)
    groups = re.findall(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', joined)
    return ["".join(STRING.findall(group)).replace('\\"', '"').replace("\\n", " ").replace("\\\\", "\\")
            for group in groups]


def pattern(text):
    """A format as the page shows it: `…` for whatever varies."""
    shown = CONVERSION.sub(lambda m: "%" if m[0] == "%%" else "…", text)
    return re.sub(r"(?:… ?)*…", lambda m: "… …" if " " in m[0] else "…", shown).strip()


class Speaker:
    """A function that takes a message: at which argument, of which kind, and where its level or status stands."""

    def __init__(self, name, form, parameters):
        self.name, self.form = name, form
        self.kind = self.at = None
        names = [re.sub(r".*?(\w+)\s*$", r"\1", p.strip()) for p in parameters]
        for word, kind in (("level", "log"), ("status", "refusal"), ("saved_errno", "errno"), ("exit", "exit")):
            if word in names:
                self.kind, self.at = kind, names.index(word)
                if kind == "log" and "char" in parameters[self.at]:
                    self.kind = "finding"
                return


def speakers(texts):
    """Every function, and every macro in front of one, by name and by the files that see it."""
    found = {}
    for path, text in texts.items():
        for match in PRINTF.finditer(text):
            speaker = Speaker(match[1], int(match[3]) - 1, match[2].rstrip(", \n").split(","))
            if speaker.name == "usage_error":
                speaker.kind, speaker.at = "usage", 0
            if speaker.kind:
                found.setdefault(speaker.name, {})[path if path.suffix == ".c" else None] = speaker
    for path, text in texts.items():
        for name, parameters, body in MACRO.findall(text):
            inner = next((word for word in re.findall(r"\b(\w+)\(", body) if word in found), None)
            if inner is not None and "__VA_ARGS__" in body:
                names = parameters.split(",")
                speaker = Speaker(name, len(names) - 1, names[:-1])
                if speaker.kind is not None:
                    speaker.kind = next(iter(found[inner].values())).kind
                    found.setdefault(name, {})[None] = speaker
    return found


def statuses(root):
    """Name of an outcome to its exit code."""
    table = (root / "src/base/status.def").read_text(encoding="utf-8")
    return {"LH_" + name: int(code) for name, code in re.findall(r"LH_STATUS\((\w+),\s*-?\d+,\s*(\d+),", table)}


def how_of(speaker, argument, exits, codes):
    """Levels of a log line or a finding, outcomes or exit codes of a refusal; "any" where the call does not say."""
    if speaker.kind == "log":
        return [LEVELS[name] for name in LEVELS if name in argument] or ["any"]
    if speaker.kind == "finding":
        return STRING.findall(argument) or ["any"]
    if speaker.kind == "errno":
        return ["LH_EIO"]
    if speaker.kind == "usage":
        return ["2"]
    if speaker.kind == "exit":
        return sorted({codes[name] for name in re.findall(r"\bEXIT_(\w+)", argument) if name in codes}) or ["any"]
    return [name for name in re.findall(r"\bLH_E\w+", argument) if name in exits] or ["any"]


def from_c(root, exits):
    texts = {path: without_comments(path.read_text(encoding="utf-8"))
             for folder in LIBRARY + PROGRAM for suffix in ("*.h", "*.c")
             for path in sorted((root / folder).rglob(suffix))}
    codes = {name: code for text in texts.values() for name, code in re.findall(r"\bEXIT_(\w+) = (\d+)", text)}
    codes.update(SUCCESS="0", FAILURE="1")
    known = speakers(texts)
    call = re.compile(r"\b(" + "|".join(sorted(known)) + r")\(")
    for path, text in texts.items():
        for match in call.finditer(text):
            speaker = known[match[1]].get(path) or known[match[1]].get(None)
            if speaker is None:
                continue
            found = arguments(text, match.end() - 1)
            if len(found) <= max(speaker.form, speaker.at):
                continue
            how = how_of(speaker, found[speaker.at], exits, codes)
            kind = {"errno": "refusal", "usage": "program", "exit": "program"}.get(speaker.kind, speaker.kind)
            source = path.relative_to(root)
            if kind == "refusal" and str(source).startswith(PROGRAM):
                kind = "program"
                how = sorted({str(exits[name]) for name in how if name in exits}) or ["any"]
            for literal in literals(found[speaker.form]):
                shown = pattern(literal) + (": …" if speaker.kind == "errno" else "")
                if " " in shown.replace("… …", "") and re.search(r"[a-z]{3}", shown):
                    yield Message(kind, shown, how, str(source))


# ---------------------------------------------------------------- reading SQL

def sql_pattern(argument):
    """What an expression of texts, `||` and format() gives, with `…` for whatever varies."""
    out, at = "", 0
    piece = re.compile(r"\s*(?:(?:pg_catalog\.)?format\s*\(|'((?:[^']|'')*)'|(\|\||OPERATOR\(pg_catalog\.\|\|\))|([^'|(]+|\(|\|))")
    depth = 0
    while at < len(argument):
        match = piece.match(argument, at)
        if match is None:
            break
        if match[0].rstrip().endswith("(") and "format" in match[0]:
            inner = sql_arguments(argument, match.end() - 1)
            form = "".join(re.findall(r"'((?:[^']|'')*)'", inner[0] if inner else ""))
            out += re.sub(r"%(?:\d+\$)?[sIL]", "…", form)
            at = match.end() + sum(len(x) for x in inner)
            end = closing(argument, match.end() - 1)
            at = end + 1
            continue
        if match[1] is not None and depth == 0:
            out += match[1].replace("''", "'")
        elif match[2] is None and not out.endswith("…"):
            out += "…"
        if match[3] is not None and "(" in match[0]:
            at = closing(argument, argument.index("(", match.start())) + 1
            continue
        at = match.end()
    return re.sub("…+", "…", out).strip()


def closing(text, start):
    """Where the parenthesis at `start` ends."""
    depth, at = 0, start
    while at < len(text):
        if text[at] == "'":
            at = text.find("'", at + 1)
            if at < 0:
                return len(text)
        elif text[at] == "(":
            depth += 1
        elif text[at] == ")":
            depth -= 1
            if depth == 0:
                return at
        at += 1
    return len(text)


def sql_arguments(text, start):
    end, depth, found, begin, at = closing(text, start), 0, [], start + 1, start
    while at < end:
        if text[at] == "'":
            at = text.find("'", at + 1)
            if at < 0:
                break
        elif text[at] in "([":
            depth += 1
        elif text[at] in ")]":
            depth -= 1
        elif text[at] == "," and depth == 1:
            found.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    return found + [text[begin:end].strip()]


def from_sql(root, exits):
    texts = {path: re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8"))
             for path in sorted((root / "sql" / "postgres").rglob("*.sql"))}
    every = "\n".join(texts.values())
    by_value = {}
    table = (root / "src/base/status.def").read_text(encoding="utf-8")
    for name, value in re.findall(r"LH_STATUS\((\w+),\s*(-?\d+),", table):
        by_value[value] = "LH_" + name
    logs = re.findall(r"CREATE FUNCTION leasehold\.(\w+)\(level text, message text", every)
    refusals = re.findall(r"CREATE FUNCTION leasehold\.(\w+)\(status integer, message text", every)
    for path, text in texts.items():
        for match in re.finditer(r"leasehold\.(" + "|".join(logs + refusals) + r")\(", text):
            found = sql_arguments(text, match.end() - 1)
            if len(found) < 2 or text[:match.start()].rstrip().endswith("FUNCTION"):
                continue
            shown = sql_pattern(found[1])
            if not re.search(r"[a-z]{3}", shown):
                continue
            if match[1] in logs:
                yield Message("log", shown, [found[0].strip("'")], str(path.relative_to(root)))
            else:
                yield Message("refusal", shown, [by_value.get(found[0], "any")], str(path.relative_to(root)))


# ---------------------------------------------------------------- putting it together

def gather(root):
    """All messages, each once: kind and text to Message."""
    exits, found = statuses(root), {}
    for message in [*from_c(root, exits), *from_sql(root, exits)]:
        known = found.setdefault((message.kind, message.text), message)
        known.how |= message.how
        known.sources |= message.sources
    return found


def composed(root, entries):
    """Messages that are put together: their pieces, searched in the sources."""
    sources = {}
    for folder, pattern_ in (("src", "*.[chd]*"), ("sql", "*.sql")):
        for path in sorted((root / folder).rglob(pattern_)):
            text = path.read_text(encoding="utf-8")
            text = re.sub(r'"\s*\n\s*"', "", text).replace('\\"', '"').replace("''", "'")
            sources[str(path.relative_to(root))] = re.sub(r"'\s*\n?\s*\|\|\s*'", "", text)
    messages, complaints = [], []
    for text, entry in entries.items():
        pieces = sorted((p.strip(' "():;') for p in text.split("…")), key=len, reverse=True)
        pieces = [p for p in pieces if len(p) > 7] or pieces[:1]
        where = [{name for name, body in sources.items() if piece in body} for piece in pieces]
        for piece, names in zip(pieces, where):
            if not names:
                complaints.append(f"{ADVICE}: nothing in the sources says \"{piece}\"")
        how = entry.get("how", [])
        messages.append(Message(entry["kind"], text, [how] if isinstance(how, str) else how, ""))
        messages[-1].sources = where[0]
    return messages, complaints


def advice_for(message, advice):
    """The advice of a message: its own, or that of a key that ends with `: …` and covers it."""
    own = advice.get(message.text)
    if own is not None:
        return message.text, own
    for key, text in advice.items():
        if key.endswith(": …") and message.text.startswith(key[:-1]):
            return key, text
    return None, None


def cell(text):
    return text.replace("|", "\\|")


def code(text):
    return f"`` {text} ``" if "`" in text else f"`{text}`"


HEAD = """# Messages

<!-- Made by tools/messages.py from the sources and from messages.toml beside this page. Change those, and run
     tools/messages.py --update. -->

Every message of the library and of the program, by kind and then by alphabet. `…` stands for a name, a number or a
reason. The last column names the file that writes the message.

| kind | where you see it |
|---|---|
| [log lines](#log-lines) | on standard error: errors and warnings; with `--log info` or `--log debug` the rest |
| [findings](#findings) | in `leasehold check` and in recovery reports |
| [refusals](#refusals) | on standard error when a command fails, in `lh_errmsg()`, and as errors of the functions in PostgreSQL |
| [usage](#usage) | on standard error, before the command has done anything |
"""


def table(out, heads, rows):
    out.append("| " + " | ".join(heads) + " |")
    out.append("|" + "---|" * len(heads))
    for row in rows:
        out.append("| " + " | ".join(cell(text) for text in row) + " |")
    out.append("")


def order(message):
    return re.sub(r"^[^a-z0-9]+", "", message.text.lower()), message.text


def sources(message):
    return ", ".join(code(name) for name in sorted(message.sources))


def render(root):
    """The page, and what is wrong with the advice."""
    exits, found = statuses(root), gather(root)
    file = tomllib.loads((root / ADVICE).read_text(encoding="utf-8"))
    more, complaints = composed(root, file.get("composed", {}))
    advice, defaults = file["advice"], file["status"]
    used, messages = set(), [*found.values()]
    for message in messages:
        key, message.advice = advice_for(message, advice)
        used.add(key)
        if message.advice is None and message.kind in ("log", "finding") \
                and not any(name.startswith(PROGRAM) for name in message.sources):
            complaints.append(f"{ADVICE}: no advice for the {message.kind} message \"{message.text}\" of "
                              f"{', '.join(sorted(message.sources))}")
    complaints += [f"{ADVICE}: no message \"{key}\"" for key in advice if key not in used]
    for message in more:
        message.advice = file["composed"][message.text]["do"]
    messages += more

    out = [HEAD, "## Log lines", ""]
    heads = ["message", "level", "what it means, what to do", "file"]
    table(out, heads, [[code(m.text), ", ".join(sorted(m.how - {"any"})) or "—", m.advice or "", sources(m)]
                       for m in sorted(messages, key=order) if m.kind == "log"])
    out += ["## Findings", "", "`info` says what is there; `warning` and `error` need a look.", ""]
    heads[1] = "level"
    table(out, heads, [[code(m.text), ", ".join(sorted(m.how - {"any"})) or "—", m.advice or "", sources(m)]
                       for m in sorted(messages, key=order) if m.kind == "finding"])
    out += ["## Refusals", "", "By exit code. The [outcomes](statuses.md) say what each code means. "
            "Where a message has no advice of its own, that of its outcome is shown.", ""]
    groups = {}
    for message in messages:
        if message.kind == "refusal":
            codes = {exits[name] for name in message.how if name in exits}
            groups.setdefault(codes.pop() if len(codes) == 1 else None, []).append(message)
    for number in sorted(groups, key=lambda n: (n is None, n)):
        out += [f"### Exit code {number}" if number is not None else "### Exit code of what went wrong", ""]
        rows = []
        for message in sorted(groups[number], key=order):
            names = sorted(name for name in message.how if name in exits)
            shared = [defaults[name] for name in names if name in defaults]
            rows.append([code(message.text), " ".join(code(name) for name in names) or "—",
                         message.advice or (shared[0] if len(shared) == 1 else ""), sources(message)])
        table(out, ["message", "outcome", "what to do", "file"], rows)
    out += ["## Usage", "", "Mistakes in a command line, a config file or an input, and notes of the program.", ""]
    table(out, ["message", "exit code", "file"],
          [[code(m.text), ", ".join(sorted(m.how - {"any"})) or "—", sources(m)]
           for m in sorted(messages, key=order) if m.kind == "program"])
    return "\n".join(out).rstrip() + "\n", complaints


def complaints(root):
    """What tests/docs wants to know: advice that is missing or of no use, and a page that is out of date."""
    page, wrong = render(root)
    there = (root / PAGE).read_text(encoding="utf-8") if (root / PAGE).is_file() else ""
    if page != there:
        wrong.append(f"{PAGE} is out of date: run tools/messages.py --update")
    return wrong


def main():
    update = "--update" in sys.argv[1:]
    places = [word for word in sys.argv[1:] if word != "--update"]
    root = pathlib.Path(places[0]).resolve() if places else ROOT
    if update:
        page, wrong = render(root)
        (root / PAGE).write_text(page, encoding="utf-8")
    else:
        wrong = complaints(root)
    print("".join(f"{line}\n" for line in wrong), end="", file=sys.stderr)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main())
