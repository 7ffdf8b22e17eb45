package pgstore

import (
	"context"
	_ "embed"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// SchemaVersion is the version of the tables and functions that this package
// needs. Newer ones serve it, too.
const SchemaVersion = 4

// enoughVersion has all but what records of operations and Move need, and
// recordsVersion all but what AcquireAll needs.
const (
	enoughVersion  = 2
	recordsVersion = 3
)

// Schema is the SQL that makes the tables and functions. It may be run again.
var Schema = tables + "\n" + many + "\n" + turn + "\n" + limits + "\n" + machines + "\n" + records + "\n" + move + "\n" + together + "\n" + functions

//go:embed schema.sql
var tables string

//go:embed many.sql
var many string

//go:embed turn.sql
var turn string

//go:embed limits.sql
var limits string

//go:embed machines.sql
var machines string

//go:embed records.sql
var records string

//go:embed move.sql
var move string

//go:embed together.sql
var together string

//go:embed functions.sql
var functions string // baton_schema, which comes last, is in it

// Migrate makes the tables and functions in the first schema of the search
// path, unless they are there. Several programs may do so at the same time.
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
		// The number is nobody else's: "baton" as text.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(x'6261746f6e'::bigint)`, pgx.QueryExecModeExec); err != nil {
			return err
		}
		var there bool
		if err := tx.QueryRow(ctx, `SELECT to_regproc('baton_schema') IS NOT NULL`, pgx.QueryExecModeExec).Scan(&there); err != nil {
			return err
		}
		if there {
			// Somebody else may have been faster.
			v, err := schemaVersion(ctx, tx)
			if err != nil {
				return err
			}
			if v >= SchemaVersion {
				return nil
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
