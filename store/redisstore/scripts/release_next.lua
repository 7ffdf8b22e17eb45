-- The rest of release.lua: somebody waits.

return pass(KEYS[1], KEYS[2], KEYS[3], e)
