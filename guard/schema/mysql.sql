-- The highest fencing token that each resource has seen. To look at it:
--
--   SELECT CONVERT(resource USING utf8mb4), token, CONVERT(holder USING utf8mb4) FROM baton_guard;

CREATE TABLE IF NOT EXISTS baton_guard (
	resource VARBINARY(512) NOT NULL COMMENT 'compared as bytes',
	token    BIGINT         NOT NULL,
	holder   VARBINARY(128) NOT NULL COMMENT 'who showed it',
	PRIMARY KEY (resource)
) ENGINE = InnoDB COMMENT = 'baton guard, schema 1';
