-- The tables of Baton's locks, for MySQL 8 and MariaDB 10.6 or newer. Times are
-- UTC, of the server's clock. To see who holds and who waits:
--
--   SELECT CONVERT(k USING utf8mb4) AS lock_key, CONVERT(owner USING utf8mb4) AS holder, token, since, ends
--     FROM baton_lock WHERE ends > UTC_TIMESTAMP(6);
--   SELECT CONVERT(k USING utf8mb4) AS lock_key, CONVERT(owner USING utf8mb4) AS owner, held, seq, since, ends
--     FROM baton_claim WHERE ends > UTC_TIMESTAMP(6) ORDER BY k, seq;
--
-- Keys are bytes: no collation folds their case or their spaces.

CREATE TABLE IF NOT EXISTS baton_lock (
	k      VARBINARY(512) NOT NULL COMMENT 'the key',
	last   BIGINT         NOT NULL COMMENT 'the highest token that was drawn',
	busy   TINYINT        NOT NULL COMMENT '1: look into baton_claim, too',
	token  BIGINT         NOT NULL COMMENT 'of the holder',
	weight BIGINT         NOT NULL COMMENT 'of the holder: 1 if it became a reader',
	id     VARBINARY(64)  NOT NULL COMMENT 'of the holder, or of the last one, secret',
	owner  VARBINARY(128) NOT NULL COMMENT 'who the holder, or the last one, says it is',
	since  DATETIME(6)    NOT NULL COMMENT 'when it was granted, UTC',
	ends   DATETIME(6)    NOT NULL COMMENT 'when it expires, or ended, UTC; 1970: released',
	PRIMARY KEY (k)
) ENGINE = InnoDB COMMENT = 'baton locks, schema 1';

CREATE TABLE IF NOT EXISTS baton_claim (
	k      VARBINARY(512) NOT NULL COMMENT 'the key',
	seq    BIGINT         NOT NULL COMMENT 'the place in line, and the token once held',
	id     VARBINARY(64)  NOT NULL COMMENT 'secret',
	owner  VARBINARY(128) NOT NULL COMMENT 'who it says it is',
	weight BIGINT         NOT NULL COMMENT 'how much of the capacity',
	cap    BIGINT         NOT NULL COMMENT 'the capacity, 2^40: a read-write lock',
	held   TINYINT        NOT NULL COMMENT '1: holds, 0: waits',
	ttl    BIGINT         NOT NULL COMMENT 'microseconds',
	since  DATETIME(6)    NOT NULL COMMENT 'when it was granted, or joined, UTC',
	ends   DATETIME(6)    NOT NULL COMMENT 'when it expires, UTC',
	PRIMARY KEY (k, seq)
) ENGINE = InnoDB COMMENT = 'baton waiters and shared holders, schema 1';
