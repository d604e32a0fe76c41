// A reporter for mocha that reports each test as it begins and ends. As `--require` it also reports files that cannot be
// loaded, and skips the files and tests that ended in earlier attempts.
'use strict';
const path = require('node:path');
const {before, end, longer, named, options, turn, write} = require('./fleet_events.cjs');

const done = before();
const left = new Set(options.deselect || []);
const wanted = id => !options.only?.length || options.only.some(name => id === name || id.startsWith(`${name}/`));

class Reporter {
  constructor(runner) {
    this.running = undefined;
    this.told = new Set();
    prune(runner.suite);
    wait(runner.suite);
    runner.suite.suites.sort((one, other) => turn(fileOf(one)) - turn(fileOf(other)));
    runner.total = runner.suite.total();
    runner.on('hook', hook => this.running === undefined && this.enter(idOf(hook)));
    runner.on('hook end', hook => this.running === idOf(hook) && this.leave());
    runner.on('test', test => this.enter(idOf(test)));
    runner.on('pass', test => this.ended(test, 'passed'));
    runner.on('pending', test => this.ended(test, 'skipped'));
    runner.on('fail', (test, error) => this.ended(test, test.type === 'hook' ? 'error' : 'failed', error));
    runner.on('end', () => {
      this.leave();
      write({e: 'finish', code: 0});
    });
  }

  enter(id) {
    this.leave();
    this.running = id;
    write({e: 'start', id});
  }

  leave() {
    if (this.running !== undefined) write({e: 'collected', id: this.running});
    this.running = undefined;
  }

  ended(test, outcome, error) {
    this.leave();
    const id = idOf(test);
    if (this.told.has(test)) return;
    this.told.add(test);
    end(id, outcome, test.duration, error);
    console.log(`${outcome === 'passed' || outcome === 'skipped' ? 'ok' : 'not ok'} ${id}`);
    if (error) console.log(`  ${String(error.stack || error.message || error).split('\n').join('\n  ')}`);
  }
}

function idOf(runnable) {
  const titles = runnable.titlePath ? runnable.titlePath() : [runnable.fullTitle()];
  return `${fileOf(runnable)}::${titles.filter(Boolean).join(' > ')}`;
}

function fileOf(runnable) {
  for (let each = runnable; each; each = each.parent) if (each.file) return named(each.file);
  const below = runnable.suites && runnable.suites.find(suite => suite.file);
  return below ? named(below.file) : '';
}

function prune(suite) {
  suite.tests = suite.tests.filter(test => wanted(fileOf(test)) && !done.tests.has(idOf(test)) && !left.has(idOf(test)));
  suite.suites.forEach(prune);
  suite.suites = suite.suites.filter(each => each.tests.length || each.suites.length);
}

// Tests have already inherited their suite's limits; limits that tests set while they run stay unchanged.
function wait(suite) {
  const hooks = ['_beforeAll', '_beforeEach', '_afterEach', '_afterAll'].flatMap(kind => suite[kind] || []);
  for (const each of [...suite.tests, ...hooks]) each.timeout(each.timeout() * longer);
  suite.suites.forEach(wait);
}

// mocha's own modules are already loaded when it handles `--require`; it calls this export for test files only.
function tolerant() {
  const own = Object.keys(require.cache).find(name => /mocha[\\/]lib[\\/](?:nodejs[\\/])?esm-utils\.c?js$/.test(name));
  const loader = own && require.cache[own].exports;
  if (!loader || !loader.requireOrImport) return;
  const load = loader.requireOrImport;
  loader.requireOrImport = async (file, ...others) => {
    const id = named(file);
    if (done.tests.has(id)) return {};
    write({e: 'start', id});
    try {
      return await load(file, ...others);
    } catch (error) {
      if (!wanted(id)) return {};
      end(id, 'error', 0, error);
      process.exitCode = 1;
      console.log(`not ok ${id}\n  ${String((error && error.stack) || error)}`);
      return {};
    } finally {
      write({e: 'collected', id});
    }
  };
}

tolerant();
module.exports = Reporter;
