"""contender.py SERVERS PATH DIR SECTIONS: takes kazoo's Lock that often and
enters the section that the files in DIR guard. With "hold" for SECTIONS it
takes the lock, says so, and stays."""
import logging, os, random, sys, time
from kazoo.client import KazooClient

logging.basicConfig(level=logging.CRITICAL)
servers, path, dir, sections = sys.argv[1:]
client = KazooClient(hosts=servers, timeout=4 if sections == "hold" else 20)
client.start(timeout=30)
lock = client.Lock(path, "kazoo", extra_lock_patterns=["-lock-"])
print("ready", flush=True)
sys.stdin.read(1)
if sections == "hold":
    lock.acquire()
    print("held", flush=True)
    time.sleep(600)
for _ in range(int(sections)):
    if not lock.acquire(timeout=60):
        print("starved", flush=True)
        os._exit(1)
    try:
        os.close(os.open(dir + "/writer", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        print("overlap: two writers", flush=True)
        os._exit(1)
    n = int(open(dir + "/counter").read())
    time.sleep(random.random() * 0.002)
    with open(dir + "/counter", "w") as f:
        f.write(str(n + 1))
    os.remove(dir + "/writer")
    lock.release()
print("done", flush=True)
client.stop()
os._exit(0)
