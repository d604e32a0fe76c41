// Events of JavaScript runners for the supervisor (see `running.py`), and the events of earlier attempts of the run.
'use strict';
const crypto = require('node:crypto');
const fs = require('node:fs');
const path = require('node:path');

const MESSAGE_CHARS = 600, TRACE_CHARS = 2400;
const options = JSON.parse(process.env.FLEET_TEST_OPTIONS || '{}');
const root = real(process.env.FLEET_TEST_ROOT || process.cwd());
const file = process.env.FLEET_TEST_EVENTS;
const key = process.env.FLEET_TEST_KEY || '';
// The factor for time limits on a loaded machine.
const longer = Number(process.env.FLEET_TEST_LONGER) || 1;
const seen = new Map();

function real(place) {
  try { return fs.realpathSync(place); } catch { return place; }
}

// A file relative to the root of the repository.
function named(place) {
  return path.relative(root, real(String(place).replace(/^file:\/\//, ''))).split(path.sep).join('/');
}

function write(event) {
  if (!file) return;
  // Two tests of a file may have the same name.
  if (event.e === 'end') {
    const number = (seen.get(event.id) || 0) + 1;
    seen.set(event.id, number);
    if (number > 1) {
      write({e: 'collected', id: event.id});
      event = {...event, id: `${event.id} (${number})`};
    }
  }
  const text = JSON.stringify(event);
  fs.appendFileSync(file, `${text}\t${crypto.createHmac('sha256', key).update(text).digest('hex')}\n`);
}

function end(id, outcome, milliseconds, error) {
  const event = {e: 'end', id, o: outcome, ms: Math.max(0, Math.round(milliseconds || 0))};
  if (error !== undefined && error !== null) Object.assign(event, told(error));
  write(event);
}

function told(error) {
  const plain = text => String(text ?? '').replace(/\u001b\[[0-9;]*[A-Za-z]/g, '');
  const stack = plain(typeof error === 'string' ? error : error.stack || error.message || String(error));
  const lines = stack.split('\n').filter(line => line.trim());
  const where = lines.findIndex(line => /^\s+at /.test(line));
  const message = plain(typeof error === 'object' && error.message) || lines.slice(0, where < 0 ? 3 : where).join('\n');
  return {m: message.trim().slice(0, MESSAGE_CHARS), t: lines.join('\n').slice(0, TRACE_CHARS)};
}

// Earlier attempts: ids of tests that ended, files that are complete, and files that hung or crashed.
function before() {
  const tests = new Set(), files = new Set(), killed = new Set();
  try {
    for (const line of fs.readFileSync(process.env.FLEET_TEST_DONE, 'utf8').split('\n')) {
      try {
        const event = JSON.parse(line);
        if (event.e === 'done') files.add(event.id);
        if (event.e === 'end') tests.add(event.id);
        if (event.e === 'end' && (event.k || !event.id.includes('::'))) killed.add(event.id.split('::')[0]);
      } catch { continue; }
    }
  } catch { /* the first attempt */ }
  return {tests, files, killed};
}

// The position of a file or test: tests to run first come first.
function turn(id) {
  const first = options.first || [];
  const wanted = group => group.some(name => id === name || [`${name}::`, `${name}/`].some(start => id.startsWith(start)));
  const found = first.findIndex(wanted);
  return found < 0 ? first.length : found;
}

module.exports = {before, end, longer, named, options, turn, write};
