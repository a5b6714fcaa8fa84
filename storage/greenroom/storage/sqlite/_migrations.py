# pyright: reportUnknownMemberType=false
"""The schema, as the list of steps that made it.

A step is never changed once released; a new one is added below. `SCHEMA_VERSION`
is the length of the list, and the table `migration` says which steps a file has.
What each table is for is told in docs/storage.md.
"""

from __future__ import annotations

from typing import Final

import apsw

from greenroom.protocol import CorruptStoreError, NewerSchemaError

from .._words import folded
from ._connection import one, run

APPLICATION_ID: Final = 0x67726E72
"""``grnr``: tells our file from any other SQLite database."""

_M001_INITIAL: Final = f"""
PRAGMA application_id = {APPLICATION_ID};
CREATE TABLE migration (version INTEGER PRIMARY KEY, name TEXT NOT NULL) STRICT;

CREATE TABLE member (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    node TEXT NOT NULL,
    addr TEXT NOT NULL,
    ttl REAL NOT NULL,
    expires REAL NOT NULL,
    dead INTEGER NOT NULL DEFAULT 0
) STRICT;

-- The hot row of a session: small, rewritten by every append. It outlives a
-- deletion, so that tokens never go back.
CREATE TABLE session (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    head INTEGER NOT NULL DEFAULT 0,
    token INTEGER NOT NULL DEFAULT 0,
    owner INTEGER,
    indexed INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX session_owner ON session(owner) WHERE owner IS NOT NULL;
CREATE INDEX session_unindexed ON session(id) WHERE indexed < head;

CREATE TABLE fact (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    token INTEGER NOT NULL,
    stream INTEGER NOT NULL,  -- 0 tape, 1 journal
    kind TEXT NOT NULL CHECK (
        kind IN ('event', 'anchor', 'message', 'tool_call', 'tool_result')),
    name TEXT NOT NULL,
    source_type TEXT NOT NULL CHECK (
        source_type IN ('session', 'message', 'assistant_block', 'tool_call',
            'tool_result', 'runtime_event', 'migration', 'summary', 'fork',
            'subagent')),
    source_id TEXT NOT NULL,
    source_seq INTEGER NOT NULL,
    digest BLOB NOT NULL,  -- of the provenance key in force
    provenance_key TEXT NOT NULL,  -- '' where it is the default one
    payload TEXT NOT NULL,
    meta TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (session, seq),
    UNIQUE (session, digest)
) STRICT;
-- One entry for each run, not for each of its facts: a leaf less per commit.
CREATE INDEX fact_start ON fact(source_id, session, seq)
WHERE name = 'execution/run_started';

-- Sessions that a reset or delete is working on, within its transaction.
CREATE TABLE lifecycle (session INTEGER PRIMARY KEY) STRICT;
CREATE TRIGGER fact_is_not_updated BEFORE UPDATE ON fact BEGIN
    SELECT RAISE(ABORT, 'the tape is append-only: a fact is never updated');
END;
CREATE TRIGGER fact_is_not_deleted BEFORE DELETE ON fact
WHEN NOT EXISTS (SELECT 1 FROM lifecycle WHERE session = OLD.session) BEGIN
    SELECT RAISE(ABORT, 'the tape is append-only: a fact is never deleted');
END;

-- Runs with a strict fact and neither terminal nor acknowledgement: the index
-- that bounds recovery by unresolved runs.
CREATE TABLE open_run (
    session INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    first INTEGER NOT NULL,  -- its first strict fact
    PRIMARY KEY (session, run_id)
) STRICT, WITHOUT ROWID;

-- Results of appends that had an id, for a commit in doubt.
CREATE TABLE append_result (
    pos INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    append_id TEXT NOT NULL,
    result TEXT NOT NULL,
    UNIQUE (session, append_id)
) STRICT;

CREATE TABLE command (
    pos INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    command_id TEXT NOT NULL,
    body TEXT NOT NULL,
    posted_at REAL NOT NULL,
    settled INTEGER NOT NULL DEFAULT 0,
    UNIQUE (session, command_id)
) STRICT;
CREATE INDEX command_open ON command(session, pos) WHERE settled = 0;

-- Projections: derived from facts, rebuilt from them.
CREATE TABLE session_info (
    session INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    settings TEXT,
    plan TEXT,
    messages INTEGER NOT NULL DEFAULT 0,
    open INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER,
    output_tokens INTEGER
) STRICT;
CREATE INDEX session_info_list ON session_info(updated_at, name)
WHERE settings IS NOT NULL;

CREATE TABLE message (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    name TEXT NOT NULL,
    order_seq INTEGER NOT NULL,
    role TEXT NOT NULL,
    status TEXT NOT NULL,
    metadata TEXT NOT NULL,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL,
    open INTEGER NOT NULL,
    input_tokens INTEGER,
    output_tokens INTEGER,
    retracted INTEGER NOT NULL DEFAULT 0,
    UNIQUE (session, name)
) STRICT;
CREATE UNIQUE INDEX message_order ON message(session, order_seq)
WHERE retracted = 0;
CREATE INDEX message_pending ON message(session, order_seq)
WHERE status = 'pending' AND retracted = 0;

CREATE TABLE block (
    message INTEGER NOT NULL,
    position INTEGER NOT NULL,
    name TEXT NOT NULL,
    waits INTEGER NOT NULL,  -- a permission or question without an answer
    body TEXT NOT NULL,
    PRIMARY KEY (message, position),
    UNIQUE (message, name)
) STRICT, WITHOUT ROWID;

-- A cache: blocks of messages in progress.
CREATE TABLE cached_blocks (
    session INTEGER NOT NULL,
    message TEXT NOT NULL,
    blocks TEXT NOT NULL,
    at REAL NOT NULL,
    UNIQUE (session, message)
) STRICT;

-- Words are cut in Python; the tokenizer only splits them at spaces. Row ids are
-- those of fact.
CREATE VIRTUAL TABLE word_index USING fts5(
    words, tokenize = 'ascii', content = '', contentless_delete = 1, detail = none
);
"""

# What a list is searched by, whether block rows are all there, and the words of what
# can be found, kept beside their index so that a search goes on without it.
_M002_LISTING_AND_SEARCH: Final = """
ALTER TABLE session_info ADD COLUMN archived_at REAL;
ALTER TABLE session_info ADD COLUMN agent TEXT NOT NULL DEFAULT '';
ALTER TABLE session_info ADD COLUMN title TEXT NOT NULL DEFAULT '';  -- folded
UPDATE session_info SET agent = coalesce(settings ->> 'agentId', ''),
    title = greenroom_folded(coalesce(settings ->> 'title', ''))
WHERE json_valid(settings);

ALTER TABLE message ADD COLUMN blocks INTEGER NOT NULL DEFAULT 0;
UPDATE message SET blocks = (SELECT count(*) FROM block WHERE message = message.id);

DROP TABLE word_index;
CREATE TABLE document (
    fact INTEGER PRIMARY KEY,
    message INTEGER,  -- the message it is the newest revision of
    words TEXT NOT NULL
) STRICT;
CREATE INDEX document_message ON document(message) WHERE message IS NOT NULL;
CREATE VIRTUAL TABLE word_index USING fts5(
    words, tokenize = 'ascii', content = 'document', content_rowid = 'fact'
);
CREATE TRIGGER document_is_indexed AFTER INSERT ON document BEGIN
    INSERT INTO word_index (rowid, words) VALUES (NEW.fact, NEW.words);
END;
CREATE TRIGGER document_is_not_indexed AFTER DELETE ON document BEGIN
    INSERT INTO word_index (word_index, rowid, words)
    VALUES ('delete', OLD.fact, OLD.words);
END;
UPDATE session SET indexed = 0;
"""

# What each attempt sent; and the way to the last request of a message.
_M003_TRACES: Final = """
CREATE TABLE attempt_trace (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL,
    run_id TEXT NOT NULL,
    message TEXT NOT NULL,
    round INTEGER NOT NULL,
    request_seq INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    at REAL NOT NULL,
    payload TEXT NOT NULL,  -- redacted
    truncated INTEGER NOT NULL,
    UNIQUE (session, run_id, request_seq, attempt)
) STRICT;
CREATE INDEX attempt_trace_request ON attempt_trace(session, message, request_seq);
CREATE INDEX fact_request
ON fact(session, payload ->> '$.messageId', payload ->> '$.requestSeq')
WHERE name IN ('view/assembled', 'provider/attempt_completed');
"""

# Agents are peers: no column refers to another row (AGT-08). Texts named json are
# kept as given; a row that can't be decoded is listed and not run (AGT-06).
_M004_AGENTS: Final = """
CREATE TABLE agents (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    name TEXT NOT NULL,
    enabled INTEGER NOT NULL DEFAULT 1,
    protected INTEGER NOT NULL DEFAULT 0,
    description TEXT NOT NULL DEFAULT '',
    icon TEXT NOT NULL DEFAULT '',
    avatar_json TEXT,
    config_json TEXT,
    state_json TEXT,
    created_at REAL NOT NULL,
    updated_at REAL NOT NULL
) STRICT;
CREATE INDEX agents_kind ON agents(kind);
CREATE INDEX agents_enabled ON agents(enabled);

CREATE TABLE app_settings (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL,  -- JSON
    updated_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
"""

_M005_PENDING_INPUT: Final = """
CREATE TABLE pending_input (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    name TEXT NOT NULL,
    body TEXT NOT NULL,  -- without what was said
    parts TEXT NOT NULL,
    UNIQUE (session, name)
) STRICT;
"""

# What sessions selected of Skills; what agents remember. Cursors and epochs say which
# part of a session was taken in, and what may not be kept any more.
_M006_SKILLS: Final = """
CREATE TABLE skill_selection (
    session TEXT PRIMARY KEY,
    names TEXT NOT NULL  -- JSON
) STRICT, WITHOUT ROWID;

CREATE TABLE recollection (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    agent TEXT NOT NULL,
    session TEXT NOT NULL,
    order_seq INTEGER NOT NULL,
    at REAL NOT NULL,
    text TEXT NOT NULL,
    words TEXT NOT NULL
) STRICT;
CREATE INDEX recollection_agent ON recollection(agent, id);
CREATE VIRTUAL TABLE recollection_index USING fts5(
    words, tokenize = 'ascii', content = 'recollection', content_rowid = 'id'
);
CREATE TRIGGER recollection_is_indexed AFTER INSERT ON recollection BEGIN
    INSERT INTO recollection_index (rowid, words) VALUES (NEW.id, NEW.words);
END;
CREATE TRIGGER recollection_is_not_indexed AFTER DELETE ON recollection BEGIN
    INSERT INTO recollection_index (recollection_index, rowid, words)
    VALUES ('delete', OLD.id, OLD.words);
END;
CREATE TABLE ingest_cursor (
    agent TEXT NOT NULL,
    session TEXT NOT NULL,
    cursor INTEGER NOT NULL,
    PRIMARY KEY (agent, session)
) STRICT, WITHOUT ROWID;
CREATE TABLE ingest_epoch (
    name TEXT PRIMARY KEY,
    epoch INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
"""

# Rare marks on a tape: links, forks, and where views begin.
_M007_MARKS: Final = """
CREATE INDEX fact_mark ON fact(session, name, seq)
WHERE name IN ('compaction/auto', 'compaction/context_pressure', 'compaction/manual', 'compaction/migrated_summary', 'compaction/resume', 'fork/discard', 'fork/merge', 'fork/start', 'migration/backfill', 'subagent/tape_linked', 'summary/reset', 'auto_handoff/context_overflow');
"""  # noqa: E501 - the reads say it in the same words

# Silent pressure is looked for as well, beside the boundary that would answer it, and
# so is where messages were taken back.
_M008_PRESSURE: Final = """
DROP INDEX fact_mark;
CREATE INDEX fact_mark ON fact(session, name, seq)
WHERE name IN ('compaction/auto', 'compaction/context_pressure', 'compaction/manual', 'compaction/migrated_summary', 'compaction/resume', 'fork/discard', 'fork/merge', 'fork/start', 'migration/backfill', 'session/rewound', 'subagent/tape_linked', 'summary/reset', 'auto_handoff/context_overflow', 'provider/context_pressure');
"""  # noqa: E501 - the reads say it in the same words

# Which client follows which session, and through which member it came.
_M009_BINDINGS: Final = """
CREATE TABLE binding (
    client TEXT NOT NULL,
    session TEXT NOT NULL,
    member INTEGER NOT NULL,
    bound_at REAL NOT NULL,
    PRIMARY KEY (client, session)
) STRICT, WITHOUT ROWID;
CREATE INDEX binding_member ON binding(member);
CREATE INDEX binding_session ON binding(session);
"""

# What compactions asked models for is found, and counted for the session where no turn
# has counted it. A view is found by its id.
_M010_SPENT: Final = """
DROP INDEX fact_mark;
CREATE INDEX fact_mark ON fact(session, name, seq)
WHERE name IN ('compaction/auto', 'compaction/context_pressure', 'compaction/manual', 'compaction/migrated_summary', 'compaction/resume', 'fork/discard', 'fork/merge', 'fork/start', 'migration/backfill', 'session/rewound', 'subagent/tape_linked', 'summary/reset', 'auto_handoff/context_overflow', 'provider/context_pressure', 'compaction/model_call_completed');
UPDATE session_info SET
    input_tokens = coalesce(input_tokens, 0) + spent.input,
    output_tokens = coalesce(output_tokens, 0) + spent.output
FROM (
    SELECT session, sum(payload ->> '$.usage.input') AS input,
        sum(payload ->> '$.usage.output') AS output
    FROM fact WHERE name = 'compaction/model_call_completed'
        AND payload ->> '$.usage.total' IS NOT NULL
    GROUP BY session
) AS spent
WHERE spent.session = session_info.session;
CREATE INDEX fact_view ON fact(payload ->> '$.viewId') WHERE name = 'view/assembled';
"""  # noqa: E501 - the reads say it in the same words

MIGRATIONS: Final[tuple[tuple[str, str], ...]] = (
    ("m001_initial", _M001_INITIAL),
    ("m002_listing_and_search", _M002_LISTING_AND_SEARCH),
    ("m003_traces", _M003_TRACES),
    ("m004_agents", _M004_AGENTS),
    ("m005_pending_input", _M005_PENDING_INPUT),
    ("m006_skills", _M006_SKILLS),
    ("m007_marks", _M007_MARKS),
    ("m008_pressure", _M008_PRESSURE),
    ("m009_bindings", _M009_BINDINGS),
    ("m010_spent", _M010_SPENT),
)
SCHEMA_VERSION: Final = len(MIGRATIONS)


def schema_version(db: apsw.Connection) -> int:
    """Return how many steps the file has; 0 for a new one.

    Raises:
        CorruptStoreError: the file is a database, but not greenroom's.
        NewerSchemaError: it has steps that are not known here.
    """
    application = one(db, "PRAGMA application_id")
    tables = one(db, "SELECT count(*) FROM sqlite_schema")
    if application == (0,) and tables == (0,):
        return 0
    if application != (APPLICATION_ID,):
        raise CorruptStoreError(
            "the file is a database, but not one of greenroom's",
            hint="use another state folder",
        )
    found = one(db, "SELECT max(version) FROM migration")
    version = found[0] if found and found[0] is not None else 0
    if version > SCHEMA_VERSION:
        raise NewerSchemaError(version, SCHEMA_VERSION)
    return version


def migrate(db: apsw.Connection) -> None:
    """Bring the file to the newest schema, each step a transaction."""
    db.create_scalar_function("greenroom_folded", _folded, 1, deterministic=True)
    for version in range(schema_version(db), SCHEMA_VERSION):
        with db:
            _apply(db, version)


def _folded(*texts: object) -> str:
    return folded(str(texts[0]))


def _apply(db: apsw.Connection, version: int) -> None:
    name, sql = MIGRATIONS[version]
    run(db, sql)
    run(db, "INSERT INTO migration VALUES (?, ?)", version + 1, name)
