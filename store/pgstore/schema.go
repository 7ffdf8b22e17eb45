package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SchemaVersion is the version of the tables and functions that this package needs. Older
// ones are refused with a *SchemaError. Newer ones work, too: a function keeps its name,
// its parameters and its results.
const SchemaVersion = 1

//go:embed *.sql
var files embed.FS

// Schema returns the SQL that makes the tables and functions. It can be run again.
func Schema() string {
	var all strings.Builder
	for _, name := range []string{
		"schema", "locks", "locks_renew", "locks_all", "queue", "batcher", "kinds", "limits", "kept", "inspect", "cleanup",
	} {
		text, err := files.ReadFile(name + ".sql")
		if err != nil {
			panic(err) // the file is embedded
		}
		all.Write(text)
		all.WriteByte('\n')
	}
	// The version comes last, so that it implies everything else.
	fmt.Fprintf(&all, `-- baton_schema says which version this is.
CREATE OR REPLACE FUNCTION baton_schema() RETURNS int LANGUAGE sql IMMUTABLE AS $$ SELECT %d $$;
`, SchemaVersion)
	return all.String()
}

// Migrate makes the tables and functions. It updates older ones on the search path in
// their schema; if there are none, it makes them in the first schema of the search path.
// Several programs may call it at the same time. Programs of older versions continue to
// work, meanwhile and afterwards.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if v, err := schemaVersion(ctx, pool); err == nil && v >= SchemaVersion {
		return nil
	}
	var standby bool
	if err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery()`, pgx.QueryExecModeExec).Scan(&standby); err == nil && standby {
		return &StandbyError{}
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// A unique number: "baton" as text.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(x'6261746f6e'::bigint)`, pgx.QueryExecModeExec); err != nil {
			return err
		}
		var where *string // the schema
		if err := tx.QueryRow(ctx, `SELECT (SELECT nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE p.oid = to_regproc('baton_schema'))`,
			pgx.QueryExecModeExec).Scan(&where); err != nil {
			return err
		}
		if where != nil {
			// Another process may have done it.
			v, err := schemaVersion(ctx, tx)
			if err != nil {
				return err
			}
			if v >= SchemaVersion {
				return nil
			}
			// CREATE TABLE IF NOT EXISTS checks only the first schema of the path. A
			// second set of tables there would allow a second holder of every lock.
			if _, err := tx.Exec(ctx, `SET LOCAL search_path = `+quoted(*where), pgx.QueryExecModeExec); err != nil {
				return err
			}
		}
		_, err := tx.Conn().PgConn().Exec(ctx, Schema()).ReadAll()
		return err
	})
	if errors.As(err, new(*SchemaError)) {
		return err
	}
	return failure(ctx, err)
}
