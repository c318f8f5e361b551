"""How threads lock and wait here, so that Ctrl-C, or a signal handler that raises, leaves no lock held.

Python runs signal handlers in the main thread: when a function begins, when a loop jumps back, and when a call has
returned. There it raises what the handler raises. So between any two calls the main thread may be gone. The rules:

1. A lock is a `threading.Lock()` or `RLock()`, and it is held by `with lock:` on that object. Its enter and exit are
   no Python functions, so nothing can come between. `lock.acquire()` before `try:` isn't safe, and neither are a
   `Condition`, an `Event`, a `Semaphore` or an executor, nor a context manager that is written in Python.
2. What has to be undone outside of memory (a file lock, a transaction) is begun inside of `try`, and the `finally`
   starts with the one call that undoes it, and that does no harm if there is nothing to undo.
3. Under a lock, a change is one assignment or one call of a C function. If it needs several, the first one marks what
   it changes as being in doubt, and the last one takes the mark away.
4. To own something (a connection, say) is to have it taken out of a list. What an interrupted thread has taken out is
   dropped, never given back half used.
5. A thread that waits for another one looks by itself now and then whether it still has to: the thread that should
   have woken it may have been interrupted just before. `Monitor` does so.
6. A thread is started by `start_thread`, or is one of the `workers`.

`limpet.testing.interrupts` finds code that breaks these rules.
"""
