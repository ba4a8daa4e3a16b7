import { native } from '../native.ts';

/** By their magic numbers (statfs(2)). */
const NETWORK_FILE_SYSTEMS: Record<number, string> = {
  0x6969: 'NFS',
  0xff534d42: 'CIFS',
  0xfe534d42: 'SMB',
  0x517b: 'SMB',
  0x5346414f: 'AFS',
  0x73757245: 'Coda',
  0x00c36400: 'CephFS',
  0x0bd00bd0: 'Lustre',
  0x19830326: 'BeeGFS',
  0x47504653: 'GPFS',
  0xaad7aaea: 'PanFS',
  0x01021997: '9p',
  0x7461636f: 'OCFS2',
  0x01161970: 'GFS2',
};

/** What kind of network file system a path is on, where locks don't mean what they mean on a disk; undefined: on none. */
export function networkFileSystem(path: string): string | undefined {
  return NETWORK_FILE_SYSTEMS[native().fileSystemType(path)];
}
