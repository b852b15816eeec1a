-- Moving the store. move.c generates the statements that read and write the rows from the list of tables
-- (src/rules/tables.c).

-- name: move_look
SELECT * FROM leasehold.move_look();

-- name: move_close
SELECT leasehold.move_close($1, $2, $3);

-- name: move_prepare
SELECT leasehold.move_prepare($1, $2, $3, $4);

-- name: move_need
SELECT leasehold.move_need('target', $1);

-- name: move_leave
SELECT leasehold.move_leave($1);

-- name: move_finish
SELECT leasehold.move_finish($1, $2, $3, $4, $5, $6);

-- name: move_reopen
SELECT leasehold.move_reopen($1);
