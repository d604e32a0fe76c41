// A reporter for `node --test` (18.17 or newer) that reports each test as it begins and ends.
import {createRequire} from 'node:module';
import path from 'node:path';

const {before, end, named, write} = createRequire(import.meta.url)('./fleet_events.cjs');
const NOT_BLAMED = ['subtestsFailed'];

class File {
  titles = [];
  open = new Map();
  parents = new Set();
  printed = '';
  told = false;

  constructor(id) {
    this.id = id;
  }

  path(data) {
    return `${this.id}::${[...this.titles.slice(0, data.nesting), data.name].join(' > ')}`;
  }
}

export default async function* report(source) {
  const {files: done, killed} = before();
  const files = new Map();
  for await (const {type, data} of source) {
    const place = data?.file ?? (data?.nesting === 0 && path.isAbsolute(data.name ?? '') ? data.name : '');
    if (!place) continue;
    const id = named(place);
    if (done.has(id) || killed.has(id)) continue;
    if (!files.has(id)) files.set(id, new File(id));
    const file = files.get(id);
    if (type === 'test:stderr' || type === 'test:stdout') {
      file.printed = (file.printed + data.message).slice(-4000);
      yield data.message;
    } else if (data.nesting === 0 && data.name && named(path.resolve(data.name)) === id) {
      yield* whole(file, type, data);
    } else {
      yield* single(file, type, data);
    }
  }
  write({e: 'finish', code: process.exitCode || 0});
}

function* whole(file, type, data) {
  if (type === 'test:dequeue') write({e: 'start', id: file.id});
  if (type === 'test:complete') write({e: 'done', id: file.id});
  if (type !== 'test:pass' && type !== 'test:fail') return;
  const error = data.details?.error;
  if (type === 'test:pass' && !file.told) end(file.id, 'passed', data.details?.duration_ms);
  if (type === 'test:fail' && !NOT_BLAMED.includes(error?.failureType)) {
    const lines = file.printed.split('\n');
    const line = lines.find(text => /^(?:Uncaught )?\w*Error\b/.test(text));
    const place = lines.map(text => /^(?:file:\/\/)?(\/[^:]+):(\d+)$/.exec(text)).find(Boolean);
    const message = line ? (place ? `${named(place[1])}:${place[2]}: ${line}` : line) : died(error);
    end(file.id, 'error', data.details?.duration_ms, {message: String(message?.message ?? message), stack: file.printed});
    yield `not ok ${file.id}\n`;
  }
  write({e: 'done', id: file.id});
}

function* single(file, type, data) {
  const key = `${data.nesting} ${data.name} ${data.line} ${data.column}`;
  if (type === 'test:dequeue') {
    file.titles[data.nesting] = data.name;
    write({e: 'collected', id: file.id});
    // A parent takes as long as all its subtests together.
    for (const [other, id] of file.open) if (parseInt(other, 10) < data.nesting) write({e: 'collected', id});
    file.open.set(key, file.path(data));
    write({e: 'start', id: file.path(data)});
  } else if (type === 'test:complete') {
    closed(file, key);
  } else if (type === 'test:start') {
    file.titles[data.nesting] = data.name;
  } else if (type === 'test:pass' || type === 'test:fail') {
    closed(file, key);
    yield* ended(file, type, data);
  }
}

function closed(file, key) {
  if (!file.open.has(key)) return;
  write({e: 'collected', id: file.open.get(key)});
  file.open.delete(key);
  // The file itself may hang between two tests and after the last one.
  if (!file.open.size) write({e: 'start', id: file.id});
}

function* ended(file, type, data) {
  const id = file.path(data), error = data.details?.error, type_ = error?.failureType;
  if (data.nesting) file.parents.add(`${file.id}::${file.titles.slice(0, data.nesting).join(' > ')}`);
  const parent = file.parents.delete(id) || data.details?.type === 'suite';
  if (parent && (type === 'test:pass' || NOT_BLAMED.includes(type_))) return;
  file.told = true;
  const milliseconds = data.details?.duration_ms;
  const off = data.skip !== undefined || data.todo !== undefined;
  if (off) end(id, 'skipped', milliseconds, typeof data.skip === 'string' ? data.skip : undefined);
  else if (type === 'test:pass') end(id, 'passed', milliseconds);
  else end(id, ['testCodeFailure', 'subtestsFailed'].includes(type_) ? 'failed' : 'error', milliseconds, cause(error));
  yield `${type === 'test:pass' || off ? 'ok' : 'not ok'} ${id}\n`;
  if (type === 'test:fail' && !off) yield `  ${String(cause(error)?.stack ?? cause(error)).split('\n').join('\n  ')}\n`;
}

function cause(error) {
  return error?.cause ?? error;
}

function died(error) {
  const how = error?.exitCode ?? error?.signal;
  return how ? `the process of this file ended with ${error.signal ?? `exit code ${how}`}` : cause(error);
}
