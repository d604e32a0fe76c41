// Ends a process of `node --test` at once if an earlier attempt has completed its file, or the file hung or crashed.
'use strict';
if (process.env.NODE_TEST_CONTEXT && process.argv[1]) {
  const {before, named} = require('./fleet_events.cjs');
  const {files, killed} = before();
  const id = named(process.argv[1]);
  if (files.has(id) || killed.has(id)) process.exit(0);
}
