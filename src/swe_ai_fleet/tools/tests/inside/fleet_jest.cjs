// A reporter for jest (24.7 or newer) that reports each test as it begins and ends. As `--testSequencer` it also puts
// the files to run first in front, and skips those that an earlier attempt has completed, or that hung or crashed.
'use strict';
const {before, end, named, turn, write} = require('./fleet_events.cjs');

const OUTCOMES = {passed: 'passed', failed: 'failed'};
const done = before();

module.exports = class {
  constructor() {
    this.files = new Map();
  }

  // As a sequencer

  sort(tests) {
    const wanted = [...tests].filter(test => !done.files.has(named(test.path)) && !done.killed.has(named(test.path)));
    return wanted.sort((one, other) => turn(named(one.path)) - turn(named(other.path)) || (one.path < other.path ? -1 : 1));
  }

  shard(tests) { return tests; }
  allFailedTests(tests) { return tests; }
  cacheResults() {}

  // As a reporter

  onRunStart() {}
  getLastError() {}

  onTestFileStart(test) {
    const id = named(test.path);
    this.files.set(id, {open: new Set(), told: new Set()});
    write({e: 'start', id});
  }

  onTestStart(test) {
    if (!this.files.has(named(test.path))) this.onTestFileStart(test);
  }

  onTestCaseStart(test, info) {
    const file = named(test.path), id = idOf(file, info);
    this.files.get(file).open.add(id);
    write({e: 'collected', id: file});
    write({e: 'start', id});
  }

  onTestCaseResult(test, result) {
    const file = named(test.path), {open, told} = this.files.get(file), id = idOf(file, result);
    // A worker that dies runs its file again; which tests have the same name is known at the end of the file.
    if (told.has(id)) write({e: 'collected', id});
    else tell(file, result);
    told.add(id);
    open.delete(id);
    // The file itself may hang between two tests and after the last one.
    if (!open.size) write({e: 'start', id: file});
  }

  onTestFileResult(test, result) {
    const file = named(test.path), told = this.files.get(file).told;
    for (const each of result.testResults || []) if (!told.delete(idOf(file, each))) tell(file, each);
    if (result.testExecError || (result.failureMessage && !(result.testResults || []).length)) {
      const error = result.testExecError || {};
      const message = String(error.message || result.failureMessage || '');
      const syntax = /SyntaxError: (\/[^:]+): (.+) \((\d+:\d+)\)/.exec(message + '\n' + (error.stack || ''));
      const said = syntax ? `${named(syntax[1])}:${syntax[3]}: SyntaxError: ${syntax[2]}` : first(message);
      end(file, 'error', 0, {message: said, stack: String(result.failureMessage || error.stack || message)});
    }
    write({e: 'done', id: file});
  }

  onTestResult(test, result) {
    this.onTestFileResult(test, result);
  }

  onRunComplete() {
    write({e: 'finish', code: 0});
  }
};

function tell(file, result) {
  const messages = result.failureMessages || [], outcome = OUTCOMES[result.status] || 'skipped';
  const error = outcome === 'failed' ? {message: first(messages[0]), stack: messages.join('\n')} : null;
  end(idOf(file, result), outcome, result.duration, error);
}

function idOf(file, info) {
  return `${file}::${[...(info.ancestorTitles || []), info.title].join(' > ')}`;
}

function first(message) {
  const lines = String(message || '').split('\n').map(line => line.trim()).filter(Boolean);
  const end = lines.findIndex(line => line.startsWith('at '));
  return lines.slice(0, end < 0 ? 8 : Math.min(end, 8)).join('\n');
}
