export { findProject, openProject, type Project } from './project.ts';
export {
  isInside,
  isShared,
  makeDirectory,
  realPath,
  refuseOtherThanFile,
  restrictMode,
  setSharedOwner,
  UnsafePathError,
  whyReplaceable,
} from './project-files.ts';
