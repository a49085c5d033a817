"""One server of an examination: messages come as lines of JSON, answers go back as lines. Ends with its stdin."""

import json
import selectors
import sys

from launcher.doctor.examinee import Examinee


def main():
    examinee = Examinee()
    while True:
        with selectors.DefaultSelector() as selector:  # the listener comes and goes
            selector.register(sys.stdin.buffer, selectors.EVENT_READ)
            if examinee.fileno() >= 0:
                selector.register(examinee, selectors.EVENT_READ)
            ready = {key.fileobj for key, _ in selector.select()}
        if examinee in ready:
            examinee.serve()
        if sys.stdin.buffer in ready:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                break
            print(json.dumps(examinee.answer(json.loads(line))), flush=True)
    examinee.close()


if __name__ == "__main__":
    main()
