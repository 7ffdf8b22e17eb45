-- The tables of Baton's locks, rate limits and records, for MySQL 8 and MariaDB 10.6 or newer. Times are
-- UTC, of the server's clock. To see who holds and who waits:
--
--   SELECT CONVERT(k USING utf8mb4) AS lock_key, CONVERT(owner USING utf8mb4) AS holder, token, since, ends
--     FROM baton_lock WHERE ends > UTC_TIMESTAMP(6);
--   SELECT CONVERT(k USING utf8mb4) AS lock_key, CONVERT(owner USING utf8mb4) AS owner, held, seq, since, ends
--     FROM baton_claim WHERE ends > UTC_TIMESTAMP(6) ORDER BY k, seq;
--
-- And what is left of the rate limits:
--
--   SELECT CONVERT(k USING utf8mb4) AS limit_key, state, ends FROM baton_limit WHERE ends > UTC_TIMESTAMP(6);
--
-- And what became of operations that are to happen once (records/), and which limits are overridden (overrides/):
--
--   SELECT CONVERT(k USING utf8mb4) AS name, CONVERT(SUBSTRING_INDEX(text, '\n', 1) USING utf8mb4) AS text, until
--     FROM baton_kept WHERE until > UTC_TIMESTAMP(6);
--
-- Keys are bytes: no collation folds their case or their spaces.

CREATE TABLE IF NOT EXISTS baton_lock (
	k      VARBINARY(512) NOT NULL COMMENT 'the key',
	last   BIGINT         NOT NULL COMMENT 'the highest token that was drawn',
	busy   TINYINT        NOT NULL COMMENT '1: baton_claim may have rows of this key',
	token  BIGINT         NOT NULL COMMENT 'of the holder',
	weight BIGINT         NOT NULL COMMENT 'of the holder: 1 if it became a reader',
	id     VARBINARY(64)  NOT NULL COMMENT 'of the holder, or of the last one; secret',
	owner  VARBINARY(128) NOT NULL COMMENT 'the name of the holder, or of the last one',
	since  DATETIME(6)    NOT NULL COMMENT 'when it was granted, UTC',
	ends   DATETIME(6)    NOT NULL COMMENT 'when it expires, or ended, UTC; 1970: released',
	PRIMARY KEY (k)
) ENGINE = InnoDB COMMENT = 'baton locks, schema 1';

CREATE TABLE IF NOT EXISTS baton_claim (
	k      VARBINARY(512) NOT NULL COMMENT 'the key',
	seq    BIGINT         NOT NULL COMMENT 'position in the queue; the fencing token once granted',
	id     VARBINARY(64)  NOT NULL COMMENT 'secret',
	owner  VARBINARY(128) NOT NULL COMMENT 'the name of the waiter or holder',
	weight BIGINT         NOT NULL COMMENT 'how much of the capacity',
	cap    BIGINT         NOT NULL COMMENT 'the capacity, 2^40: a read-write lock',
	held   TINYINT        NOT NULL COMMENT '1: holds, 0: waits',
	ttl    BIGINT         NOT NULL COMMENT 'microseconds',
	since  DATETIME(6)    NOT NULL COMMENT 'when it was granted, or queued, UTC',
	ends   DATETIME(6)    NOT NULL COMMENT 'when it expires, UTC',
	PRIMARY KEY (k, seq)
) ENGINE = InnoDB COMMENT = 'baton waiters and shared holders, schema 1';

-- state is numbers: 1, limit, then until when how many count; or
-- 2, period, which, limit, count before, count; or
-- 3, when the bucket is full again, fraction, tokens, period, tokens beyond the burst.
CREATE TABLE IF NOT EXISTS baton_limit (
	k     VARBINARY(512)                 NOT NULL COMMENT 'the key',
	state MEDIUMTEXT CHARACTER SET ascii NOT NULL COMMENT 'what was taken, times in microseconds since 1970',
	ends  DATETIME(6)                    NOT NULL COMMENT 'when it expires: nothing counts any more, UTC',
	PRIMARY KEY (k)
) ENGINE = InnoDB COMMENT = 'baton rate limits, schema 1';

CREATE TABLE IF NOT EXISTS baton_limit_id (
	k    VARBINARY(512) NOT NULL COMMENT 'the first key of the request',
	id   VARBINARY(64)  NOT NULL COMMENT 'of a request that was allowed and may be repeated',
	at   BIGINT         NOT NULL COMMENT 'when that was, in microseconds since 1970',
	wait BIGINT         NOT NULL COMMENT 'from then to its turn, in microseconds',
	ends DATETIME(6)    NOT NULL COMMENT 'when it is forgotten, UTC',
	PRIMARY KEY (k, id),
	KEY (ends)
) ENGINE = InnoDB COMMENT = 'baton requests to rate limits, schema 1';

CREATE TABLE IF NOT EXISTS baton_kept (
	k     VARBINARY(530) NOT NULL COMMENT 'records/ or overrides/, and the key',
	text  MEDIUMBLOB     NOT NULL COMMENT 'a line of JSON and, behind it, the result of the operation',
	until DATETIME(6)    NOT NULL COMMENT 'when it expires, UTC',
	PRIMARY KEY (k),
	KEY (until)
) ENGINE = InnoDB COMMENT = 'baton records of operations and overrides of limits, schema 1';
