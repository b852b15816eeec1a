/* The SQL that removes everything of ours from a database (`leasehold migrate --drop-sql`). */
#include "store/postgres/pg.h"

/* Other databases of the server may use the roles, too: then the server refuses to drop them. */
static const char drop_everything[] =
    "-- Jobs, events and all else of leasehold, and whatever was built upon it: see the notices.\n"
    "BEGIN;\n"
    "DROP SCHEMA leasehold CASCADE;\n"
    "COMMIT;\n"
    "-- The roles belong to the whole server: each goes where no other database needs it.\n"
    "DO $$\n"
    "DECLARE\n"
    "    role pg_catalog.text;\n"
    "BEGIN\n"
    "    FOREACH role IN ARRAY ARRAY['leasehold_producer', 'leasehold_reader',\n"
    "                        'leasehold_worker', 'leasehold_owner']\n"
    "    LOOP\n"
    "        BEGIN\n"
    "            EXECUTE pg_catalog.format('DROP ROLE IF EXISTS %I', role);\n"
    "        EXCEPTION WHEN dependent_objects_still_exist OR insufficient_privilege THEN\n"
    "            RAISE NOTICE 'role % stays: %', role, SQLERRM;\n"
    "        END;\n"
    "    END LOOP;\n"
    "END $$;\n";

int pg_read_drop_sql(struct txn *txn, struct lhi_act *act)
{
    char *text = lhi_strdup(drop_everything);

    (void)txn;
    if (text == NULL)
        return lhi_no_memory(&act->err);
    *act->drop_sql = text;
    return LH_OK;
}
