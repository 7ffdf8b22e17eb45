-- Rest of acquire.lua, for the first acquisition after 140 ms: the counter was gone
-- or used up.

n = reseed(KEYS[2], KEYS[3], n)
redis.call('SET', KEYS[1], ARGV[1] .. num(n) .. ARGV[3], 'PX', ARGV[2])
return n
