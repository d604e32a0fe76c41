#!/bin/sh
printf 'zoe 1\nann 2\nzoe 3\n' > /tmp/sales.txt
[ "$(awk -f /app/totals.awk /tmp/sales.txt)" = "$(printf 'zoe 4\nann 2')" ] && reward=1.0 || reward=0.0
echo "$reward" > /logs/verifier/reward.txt
