#!/bin/sh
cat > /app/totals.awk <<'END'
!($1 in sum) { order[++count] = $1 }
{ sum[$1] += $2 }
END { for (i = 1; i <= count; i++) print order[i], sum[order[i]] }
END
