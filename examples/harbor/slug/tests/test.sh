#!/bin/sh
node /tests/check.js && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt
