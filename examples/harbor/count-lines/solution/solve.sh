#!/bin/sh
printf 'grep -c . "$1"\n' > /app/count.sh
