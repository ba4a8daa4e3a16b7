export { findSQLiteQueue, openSQLiteQueue } from './engine.ts';
