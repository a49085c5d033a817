"""Write the token ids of a text when told to, and say whether it was this process that wrote them, and of how many pairs.

write_tokens.py TEXT TOKENIZER
"""

import sys
import time
from pathlib import Path

from launcher.corpus.dataset import PairText
from launcher.corpus.text_digest import read_text
from launcher.recipes.transformer.transformer_settings import DataConfig
from launcher.trainer.data import token_cache
from launcher.trainer.data.tokenizer import Tokenizer

path, tokenizer = Path(sys.argv[1]), Tokenizer(Path(sys.argv[2]).read_bytes())
wrote = []
write = token_cache._write


def write_slowly(*arguments, **options):
    time.sleep(0.5)  # the other process comes meanwhile
    write(*arguments, **options)
    wrote.append(True)


token_cache._write = write_slowly
text = read_text(PairText(path))
print("ready", flush=True)
sys.stdin.readline()
token_cache.write_tokens(text, tokenizer)
stored = token_cache.find_tokens(token_cache.tokens_name(text.digest, tokenizer))
print(bool(wrote), len(stored.pairs(DataConfig())))
