"""One server of an examination: messages come as lines of JSON, answers go back as lines. Ends with its stdin."""

import json
import selectors
import sys

from launcher.doctor.probe_handler import ProbeHandler


def main():
    handler = ProbeHandler()
    while True:
        with selectors.DefaultSelector() as selector:  # the listener comes and goes
            selector.register(sys.stdin.buffer, selectors.EVENT_READ)
            if handler.fileno() >= 0:
                selector.register(handler, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select()}
        if handler in ready:
            handler.serve()
        if sys.stdin.buffer in ready:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                break
            print(json.dumps(handler.answer(json.loads(line))), flush=True)
    handler.close()


if __name__ == "__main__":
    main()
