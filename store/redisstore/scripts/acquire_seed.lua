-- Rest of acquire.lua, for the first acquisition after 140 ms: the counter was gone
-- or used up.

return reseed(KEYS[2], KEYS[3], n)
