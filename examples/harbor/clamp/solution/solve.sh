#!/bin/sh
sed -i 's/(void)high;//; s/low : value;/low : value > high ? high : value;/' /app/clamp.c
