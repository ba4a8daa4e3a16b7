export { findProject, keepIdentity, openProject, type Project, readIdentity } from './project.ts';
export {
  giveTo,
  inDirectory,
  isShared,
  locate,
  narrow,
  type ResolvedPath,
  readable,
  realPath,
  UnsafePathError,
} from './project-files.ts';
