#!/bin/sh
gcc -o /tmp/hidden /tests/hidden.c /app/clamp.c && /tmp/hidden && echo 1 > /logs/verifier/reward.txt ||
    echo 0 > /logs/verifier/reward.txt
