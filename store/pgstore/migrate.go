package pgstore

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SchemaVersion is the version of the tables and functions that this package
// needs. Newer ones serve it, too.
const SchemaVersion = 7

// enoughVersion has all but what records of operations and Move need. recordsVersion
// has all but AcquireAll, and a Downgrade that waits for transactions which depend on
// the lease. In version 4, AcquireAll may leave claims that no statement sees, if the
// clock is set back.
const (
	enoughVersion  = 2
	recordsVersion = 3
	soundVersion   = 5
	renameVersion  = 6 // the first that knows Rename

	overridesVersion = 7 // the first that keeps overrides of limits
)

// Schema is the SQL that makes the tables and functions. It may be run again.
var Schema = tables + "\n" + many + "\n" + turn + "\n" + limitsSQL + "\n" + machines + "\n" + records + "\n" + move + "\n" + rename + "\n" + overrides + "\n" + together + "\n" + functions

//go:embed schema.sql
var tables string

//go:embed many.sql
var many string

//go:embed turn.sql
var turn string

//go:embed limits.sql
var limitsSQL string

//go:embed machines.sql
var machines string

//go:embed records.sql
var records string

//go:embed move.sql
var move string

//go:embed rename.sql
var rename string

//go:embed overrides.sql
var overrides string

//go:embed together.sql
var together string

//go:embed functions.sql
var functions string // baton_schema, which comes last, is in it

// has answers with errors.ErrUnsupported if the tables are older than what was
// asked for needs.
func (s *Store) has(version int, what string) error {
	if s.schema >= version {
		return nil
	}
	return fmt.Errorf("postgres: %s needs tables of version %d, and these are of version %d: run \"baton schema apply\" once, or call pgstore.Migrate, and start the program again: %w",
		what, version, s.schema, errors.ErrUnsupported)
}

// Migrate makes the tables and functions. Older ones that the search path leads to
// are brought up to date where they are; where there are none, they are made in the
// first schema of the search path. Several programs may do so at the same time.
// Old programs go on working meanwhile and afterwards.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if v, err := schemaVersion(ctx, pool); err == nil && v >= SchemaVersion {
		return nil
	}
	var standby bool
	if err := pool.QueryRow(ctx, `SELECT pg_is_in_recovery()`, pgx.QueryExecModeExec).Scan(&standby); err == nil && standby {
		return &StandbyError{}
	}
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		// No other program uses this number: it is "baton" as text.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(x'6261746f6e'::bigint)`, pgx.QueryExecModeExec); err != nil {
			return err
		}
		var where *string // the schema
		if err := tx.QueryRow(ctx, `SELECT (SELECT nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = pronamespace WHERE p.oid = to_regproc('baton_schema'))`,
			pgx.QueryExecModeExec).Scan(&where); err != nil {
			return err
		}
		if where != nil {
			// Another process may have been faster.
			v, err := schemaVersion(ctx, tx)
			if err != nil {
				return err
			}
			if v >= SchemaVersion {
				return nil
			}
			// CREATE TABLE IF NOT EXISTS looks into the first schema of the path alone. A
			// second set of tables there would be a second holder of every lock.
			if _, err := tx.Exec(ctx, `SET LOCAL search_path = `+quoted(*where), pgx.QueryExecModeExec); err != nil {
				return err
			}
		}
		_, err := tx.Conn().PgConn().Exec(ctx, Schema).ReadAll()
		return err
	})
	if errors.As(err, new(*SchemaError)) {
		return err
	}
	return failure(ctx, err)
}

// Migrate is the function Migrate on the store's own pool. It tells why Open
// could not make tables without which only some requests fail.
func (s *Store) Migrate(ctx context.Context) error { return Migrate(ctx, s.pool) }
