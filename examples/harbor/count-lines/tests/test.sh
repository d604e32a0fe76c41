#!/bin/sh
printf 'one\n\ntwo\n\n\nthree\n' > /tmp/sample.txt
if [ "$(sh /app/count.sh /tmp/sample.txt)" = 3 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
