-- Rest of acquire.lua, for the first acquisition after 140 ms: the counter was gone
-- or used up.

n = reseed(KEYS[2], KEYS[3], n)
redis.call('SET', KEYS[1], withToken(ARGV[1], n), 'PX', ARGV[2])
return n
