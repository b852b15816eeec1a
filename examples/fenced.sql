-- A resource that stores the highest token that it has accepted. Run once.
CREATE TABLE balance (
    account TEXT PRIMARY KEY,
    cents   INTEGER NOT NULL,
    token   INTEGER NOT NULL DEFAULT 0     -- of the last job that wrote here
) STRICT;
