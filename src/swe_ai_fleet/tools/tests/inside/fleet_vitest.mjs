// A reporter for vitest (0.34 or newer) that reports each test as it begins and ends. It puts the files to run first in
// front, and skips those that an earlier attempt has completed, or that hung or crashed.
import {createRequire} from 'node:module';

const {before, end, longer, named, turn, write} = createRequire(import.meta.url)('./fleet_events.cjs');
const OUTCOMES = {pass: 'passed', passed: 'passed', fail: 'failed', failed: 'failed'};

export default class Fleet {
  tasks = new Map();
  told = new Set();
  open = new Map();
  done = new Set();
  configs = new Set();

  onInit(vitest) {
    const {files, killed} = before();
    for (const {config} of [vitest, ...(vitest.projects || [])]) {
      if (!config?.exclude || this.configs.has(config)) continue;
      this.configs.add(config);
      for (const limit of ['testTimeout', 'hookTimeout']) if (config[limit] > 0) config[limit] *= longer;
      for (const file of new Set([...files, ...killed])) {
        const pattern = `**/${file.replace(/[^\w./-]/g, '?')}`;
        if (!config.exclude.includes(pattern)) config.exclude.push(pattern);
      }
    }
    const Own = vitest.config?.sequence?.sequencer;
    if (Own) vitest.config.sequence.sequencer = sorted(Own);
  }

  // vitest 3 and newer

  onTestModuleQueued(module) {
    this.begin(named(module.moduleId));
  }

  onTestModuleCollected(module) {
    this.module = true;
    this.begin(named(module.moduleId));
    if (module.task?.result?.state === 'fail') this.file(module.task);
  }

  onTestCaseReady(test) {
    this.enter(named(test.module.moduleId), titled(named(test.module.moduleId), test.task));
  }

  onTestCaseResult(test) {
    this.task(test.task);
  }

  onTestModuleEnd(module) {
    this.file(module.task);
  }

  // Before

  onCollected(files) {
    for (const file of files || []) {
      this.walk(file);
      if (!this.module) this.begin(named(file.filepath));
    }
  }

  onTaskUpdate(packs) {
    for (const [id, result] of packs) {
      const task = this.tasks.get(id);
      if (!task || this.module || !result) continue;
      if (task.type === 'suite') {
        if (!task.filepath && result.state === 'fail') task.result = result;
        if (task.filepath && OUTCOMES[result.state]) this.file({...task, result});
      } else if (result.state === 'run') {
        this.enter(named(task.file.filepath), titled(named(task.file.filepath), task));
      } else {
        this.task(Object.assign(task, {result}));
      }
    }
  }

  onFinished(files) {
    for (const file of files || []) this.file(file);
    write({e: 'finish', code: 0});
  }

  onTestRunEnd(modules) {
    for (const module of modules || []) this.file(module.task);
    write({e: 'finish', code: 0});
  }

  // Both

  walk(task) {
    this.tasks.set(task.id, task);
    for (const each of task.tasks || []) this.walk(each);
  }

  begin(file) {
    if (this.open.has(file) || this.done.has(file)) return;
    this.open.set(file, new Set());
    write({e: 'start', id: file});
  }

  enter(file, id) {
    this.begin(file);
    const open = this.open.get(file);
    if (!open || open.has(id)) return;
    open.add(id);
    write({e: 'collected', id: file});
    write({e: 'start', id});
  }

  task(task) {
    const result = task.result, file = named(task.file.filepath), id = titled(file, task);
    if (this.told.has(task.id)) return;
    if (!result?.state || result.state === 'run' || result.state === 'queued') {
      if (!['skip', 'todo'].includes(task.mode)) return;
    }
    this.told.add(task.id);
    end(id, OUTCOMES[result?.state] || 'skipped', result?.duration, OUTCOMES[result?.state] === 'failed' ? error(result) : null);
    const open = this.open.get(file);
    open?.delete(id);
    // The file itself may hang between two tests and after the last one.
    if (open && !open.size) write({e: 'start', id: file});
  }

  file(file) {
    const id = named(file.filepath);
    if (this.done.has(id)) return;
    this.done.add(id);
    for (const each of file.tasks || []) this.rest(each);
    const errors = file.result?.errors || [];
    if (errors.length) end(id, 'error', 0, error(file.result));
    this.open.delete(id);
    write({e: 'done', id});
  }

  rest(task) {
    for (const each of task.tasks || []) this.rest(each);
    if (task.type !== 'suite') this.task(task);
    else if (task.result?.errors?.length) end(titled(named(task.file.filepath), task), 'error', 0, error(task.result));
  }
}

function sorted(Own) {
  const place = spec => named(spec.moduleId ?? (Array.isArray(spec) ? spec[1] : spec));
  return class extends Own {
    async sort(specs) {
      return (await super.sort(specs)).sort((one, other) => turn(place(one)) - turn(place(other)));
    }
  };
}

function titled(file, task) {
  const titles = [];
  for (let each = task; each && !each.filepath; each = each.suite) if (each.name) titles.unshift(each.name);
  return `${file}::${titles.join(' > ')}`;
}

function error(result) {
  const first = result.errors?.[0] || {};
  return {message: first.name && first.message ? `${first.name}: ${first.message}` : first.message, stack: first.stack || first.stackStr};
}
