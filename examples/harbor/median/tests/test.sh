#!/bin/sh
cd /app
score() { python3 -c "from stats import median; assert median($1) == $2" && echo 1 || echo 0; }
odd=$(score '[5, 9, 7]' 7)
even=$(score '[10, 0, 4, 2]' 3)
printf '{"reward": %s, "odd": %s, "even": %s}\n' "$((odd * even))" "$odd" "$even" > /logs/verifier/reward.json
