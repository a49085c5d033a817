"""The codes of texts that are no JSON, and of JSON that is no table. The scanner, the formats and the schema find them."""

from __future__ import annotations

from launcher.rank_table.catalogue import Entry, Severity, enter

# Of each code: itself, HCCL's own code (- for none), the severity and the title; then the explanation.
_ENTRIES = """
RT101 EI0004 error the file is not UTF-8
HCCL reads tables as UTF-8. Editors on Windows save UTF-16, and shells there redirect into it; both start with a byte
order mark that gives them away. A single byte that is not UTF-8 usually comes from a name or comment in another
encoding.

RT102 EI0004 error something stands where JSON expects something else
JSON knows objects, lists, strings in double quotes, numbers, true, false and null, with commas and colons between
them. Anything else at such a place, a typographic quote or a full-width comma for instance, ends the reading of the
table.

RT103 EI0004 error a comma with nothing before or after it
A comma separates two entries. After the last entry of a list or an object there is none, although Python and
JavaScript allow it; this is the most frequent fault of tables that were shortened by hand.

RT104 EI0004 error a comment
JSON has no comments, neither // nor /* */ nor #. The listings in HCCL's own documentation carry them and cannot be
used as they are printed.

RT105 EI0004 error a comma or colon is missing
Entries are separated by commas, a key from its value by a colon. Lines that were copied under each other often lack
the comma between them.

RT106 EI0004 error a string that JSON does not allow
A string ends on the line where it starts, and a backslash in it starts one of a few escapes. Control characters and
halves of surrogate pairs may not stand in it.

RT107 EI0004 error a word without double quotes
Keys and texts stand in double quotes; single quotes and bare words are JavaScript or Python, not JSON.

RT108 EI0004 error the file is cut off
The text ends while an object, a list or a string is still open: the copy was not complete, or its last lines were
deleted.

RT109 - warning text after the table
HCCL stops at the end of the first JSON value and ignores what follows; every other reader refuses the file. Usually
two tables were written into one file, or a bracket is closed too early.

RT110 EI0004 error nested too deeply
No rank table of any format needs more than 15 levels of lists and objects. A text with hundreds of them is no table,
and some readers crash on it.

RT111 EI0004 error the file is empty
The file has no content except white space: the program that writes the table has not run yet, or it failed.

RT112 EI0004 error brackets that do not match
A list opened by [ is closed by ], an object opened by { by }. Usually a closing bracket is missing some lines
earlier; the message names the line of the bracket that is still open.

RT113 EI0004 error an ellipsis
Three dots stand where documentation left entries out. The table must name every server and every device.

RT114 EI0004 error too many faults
Faults are reported line by line. A text with tens of thousands of them is no rank table, and the rest of it is not
read.

RT115 EI0004 error a number that is too large
HCCL reads every number of the file as it comes, also under keys that it does not know, and stops at one that is
larger than a double can be, such as 1e999.

RT116 EI0004 error a program instead of a table
The file is a program, not JSON. It was given where a rank table is expected.

RT117 EI0004 error data of another kind
A rank table spends more than ten characters on each of its values. A text with a million values or more that are
shorter is a list of numbers or words, and is not read: as objects in memory it would be many times as large.

RT201 EI0004 error the document is not an object
A rank table is one JSON object whose keys say which format it is written in. A list or a bare value is not a rank table.

RT202 - error a related file that is not a rank table
Several programs around HCCL describe clusters in files that look like rank tables: vLLM for disaggregated prefill,
MindCluster for groups of servers, MindSpore for several clusters, LLM-DataDist for single links. HCCL reads none of
them, so they are named here and checked no further.

RT203 EI0014 error an unknown version
HCCL decides by the text of `version` how to read a table: "1.0" for servers with devices, "1.1" for ranks on hosts
and devices, "1.2" for super pods, "2.0" for A5. Every other text is refused.

RT204 EI0017 error a key is missing
Without this key HCCL cannot read the entry. The message says which key, the hint what to add.

RT205 EI0017 error a value of the wrong type
The formats before v2.0 write every number as a JSON string, v2.0 writes numbers as numbers; HCCL refuses one where it
asks for the other.

RT206 EI0014 error an empty list
A table names at least one server, and each server at least one device.

RT208 EI0004 error text after a v2.0 table
HCCL's reader of the formats before v2.0 stops at the end of the first JSON value. That of v2.0 reads the file to its
end and refuses what follows the table.

RT401 - warning an unknown key
HCCL ignores keys that it does not know, so a misspelt optional key is silently lost. Each unknown key is named
once, at its first use.

RT405 - warning a key is written twice in one object
Readers take the last of two equal keys and silently ignore the first.

RT406 - warning the file's name does not end in .json
HCCL looks for .json at the end of the path and refuses a file of any other name (EI0004). Other readers do not mind.

RT535 - error a file that others may read, for MindIE
MindIE refuses to read a rank table that everybody may read or its group may write: the mode is 640 or stricter.
"""

for _paragraph in _ENTRIES.strip().split("\n\n"):
    _head, _, _explanation = _paragraph.partition("\n")
    _code, _hccl_code, _severity, _title = _head.split(maxsplit=3)
    _known = None if _hccl_code == "-" else _hccl_code
    enter(Entry(_code, Severity(_severity), _title, " ".join(_explanation.split()), _known))
