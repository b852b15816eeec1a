-- A resource that knows whom it obeys: the highest token it has seen. Run once.
CREATE TABLE balance (
    account TEXT PRIMARY KEY,
    cents   INTEGER NOT NULL,
    token   INTEGER NOT NULL DEFAULT 0     -- of the last job that wrote here
) STRICT;
