export { findProject, openProject, type Project } from './project.ts';
export {
  type FilePlace,
  giveTo,
  inDirectory,
  isShared,
  locate,
  narrow,
  readable,
  realPath,
  Unsafe,
} from './project-files.ts';
