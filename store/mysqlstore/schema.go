package mysqlstore

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"strings"
)

//go:embed schema.sql
var schemaSQL string

// Schema returns the SQL that makes the tables, for programs that keep all of their
// tables in migrations. It does not change existing tables.
func Schema() string { return schemaSQL }

const schemaMark = "schema 1" // in the comments of all tables

// ErrSchema says that tables are missing, or do not fit this version of Baton: they are
// older or newer, or were changed by hand.
var ErrSchema = errors.New("its tables are missing or not those of this version: run baton schema apply")

// Migrate makes the missing tables in the database that db is connected to. It may be
// called at any time, by several programs at once. The context bounds it.
func Migrate(ctx context.Context, db *sql.DB) error {
	if checkSchema(ctx, db) == nil {
		return nil // even if the user may not make them
	}
	for text := range strings.SplitSeq(schemaSQL, ";\n") {
		lines := strings.Split(text, "\n")
		kept := lines[:0]
		for _, line := range lines {
			if !strings.HasPrefix(line, "--") {
				kept = append(kept, line)
			}
		}
		if text = strings.TrimSpace(strings.Join(kept, "\n")); text == "" {
			continue
		}
		if _, err := db.ExecContext(ctx, text); err != nil {
			return fmt.Errorf("making the tables: %w", opening(ctx, err))
		}
	}
	return checkSchema(ctx, db)
}

// columns are the required columns, by their names in information_schema.
var columns = map[string]string{
	"baton_lock.k": "varbinary(512)", "baton_lock.last": "bigint", "baton_lock.busy": "tinyint",
	"baton_lock.token": "bigint", "baton_lock.weight": "bigint", "baton_lock.id": "varbinary(64)",
	"baton_lock.owner": "varbinary(128)", "baton_lock.since": "datetime(6)", "baton_lock.ends": "datetime(6)",
	"baton_claim.k": "varbinary(512)", "baton_claim.seq": "bigint", "baton_claim.id": "varbinary(64)",
	"baton_claim.owner": "varbinary(128)", "baton_claim.weight": "bigint", "baton_claim.cap": "bigint",
	"baton_claim.held": "tinyint", "baton_claim.ttl": "bigint", "baton_claim.since": "datetime(6)", "baton_claim.ends": "datetime(6)",
	"baton_limit.k": "varbinary(512)", "baton_limit.state": "mediumtext", "baton_limit.ends": "datetime(6)",
	"baton_limit_id.k": "varbinary(512)", "baton_limit_id.id": "varbinary(64)", "baton_limit_id.at": "bigint",
	"baton_limit_id.wait": "bigint", "baton_limit_id.ends": "datetime(6)",
	"baton_kept.k": "varbinary(530)", "baton_kept.text": "mediumblob", "baton_kept.until": "datetime(6)",
}

var tables = []string{"baton_lock", "baton_claim", "baton_limit", "baton_limit_id", "baton_kept"}

var tableList = "('" + strings.Join(tables, "','") + "')"

// checkSchema compares the tables with columns.
func checkSchema(ctx context.Context, db *sql.DB) error {
	wrong, err := schemaProblems(ctx, db)
	if err != nil {
		return opening(ctx, err)
	}
	if len(wrong) > 0 {
		return &refusal{schemaFinding(wrong), fmt.Errorf("%w (%s)", ErrSchema, wrong[0])}
	}
	return nil
}

// schemaProblems lists what is wrong with the tables, and which are missing.
func schemaProblems(ctx context.Context, db *sql.DB) (wrong []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT c.TABLE_NAME, c.COLUMN_NAME, c.COLUMN_TYPE, c.COLUMN_KEY, t.TABLE_COMMENT
		FROM information_schema.COLUMNS c
		JOIN information_schema.TABLES t ON t.TABLE_SCHEMA=c.TABLE_SCHEMA AND t.TABLE_NAME=c.TABLE_NAME
		WHERE c.TABLE_SCHEMA=DATABASE() AND c.TABLE_NAME IN `+tableList)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	seen := make(map[string]bool)
	for rows.Next() {
		var table, column, kind, key, comment string
		if err := rows.Scan(&table, &column, &kind, &key, &comment); err != nil {
			return nil, err
		}
		seen[table] = true
		if !seen[comment] && !strings.HasSuffix(comment, schemaMark) {
			seen[comment] = true
			wrong = append(wrong, fmt.Sprintf("table %s is not of %s", table, schemaMark))
		}
		name := table + "." + column
		seen[name] = true
		// MariaDB shows a meaningless width: bigint(20).
		if want, ours := columns[name]; ours && kind != want && (!strings.HasPrefix(kind, want+"(") || strings.Contains(want, "(")) {
			wrong = append(wrong, fmt.Sprintf("column %s is %s, not %s", name, kind, want))
		}
		if (column == "k" || name == "baton_claim.seq" || name == "baton_limit_id.id") && key != "PRI" {
			wrong = append(wrong, fmt.Sprintf("column %s is not in the primary key", name))
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for _, table := range tables {
		if !seen[table] {
			wrong = append(wrong, "there is no table "+table)
			continue
		}
		for name := range columns {
			if strings.HasPrefix(name, table+".") && !seen[name] {
				wrong = append(wrong, "there is no column "+name)
			}
		}
	}
	return wrong, nil
}
